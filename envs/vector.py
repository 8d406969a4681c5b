"""The `gymnasium.vector.VectorEnv` face: many runs, rows of one core, in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from typing_extensions import override

from envs.resets import Seeds, options_of_row, read_mask, read_seeds
from envs.rows import Batch
from fl_core.base.arguments import check_argument
from fl_core.base.bounds import count
from fl_core.base.errors import InputError, require
from fl_core.run.ranges import MOST_ROUNDS

Float32Array = NDArray[np.float32]
STEPS = count(1, MOST_ROUNDS, "no run has more rounds")


class DPilotVectorEnv(Batch, VectorEnv[Float32Array, Float32Array, Any]):
    """A batch of federated runs. Arguments are those of `DPilotEnv`, and the number of environments."""

    metadata: dict[str, Any] = {
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        **settings: Any,
    ):
        """Build the batch.

        Args:
            num_envs: rows of the batch.
            render_mode: `ansi` or `rgb_array`, one picture per row.
            autoreset_mode: NEXT_STEP (a finished row is reset by the following step, which ignores its action) or
                SAME_STEP (at once; the last observation is in `info["final_obs"]`), or DISABLED (the caller resets it
                by `options["reset_mask"]`, and a step before that raises `ResetNeeded`).
            max_episode_steps: decisions after which an episode is truncated, as by Gymnasium's `TimeLimit`.
            **settings: see `DPilotEnv`.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        self.autoreset_mode = _read_mode(autoreset_mode)
        if max_episode_steps is not None:
            STEPS.check("max_episode_steps", max_episode_steps)
        self._limit = math.inf if max_episode_steps is None else max_episode_steps
        Batch.__init__(self, num_envs, render_mode, settings)
        self.num_envs = num_envs
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._over = np.zeros(num_envs, dtype=bool)
        self.render_mode = render_mode
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.core.observation_space
        self.single_action_space = self.core.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    @override
    def reset(
        self, *, seed: Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Start an episode in every row; an integer seed gives row i the seed `seed + i`.

        Seeds and options mean what they mean for `DPilotEnv`; `options["instance"]` names one instance, or one per row.
        With `options["reset_mask"]` (bool `[num_envs]`), only those rows are reset.

        Raises:
            InputError: a seed or an option is not allowed; no run has changed then.
        """
        seeds = read_seeds(seed, self.num_envs)
        check_argument("options", options, Mapping[str, Any] | None)
        options = dict(options or {})
        rows = read_mask(options.pop("reset_mask", None), self.num_envs)
        self._begin(rows, [seeds[row] for row in rows], [options_of_row(options, row, self.num_envs) for row in rows])
        return self.core.observe(), self._infos(rows)

    @override
    def step(
        self, actions: Float32Array
    ) -> tuple[Float32Array, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply one decision to every row; finished rows are reset as the autoreset mode says.

        Raises:
            InputError: there is not one coordinate per row and knob.
            ResetNeeded: a row was never reset, or is finished and the autoreset mode is DISABLED.
        """
        self._require_begun()
        waiting = np.flatnonzero(self._over).tolist()
        if self.autoreset_mode == AutoresetMode.DISABLED and waiting:
            raise gym.error.ResetNeeded(f"The episodes of rows {waiting} are over; reset them by a reset_mask.")
        going = ~self._over
        rewards, ended = self.core.step(actions, np.flatnonzero(going).tolist())
        self._steps += going
        truncated = going & (self._steps >= self._limit)
        self._over = ended | truncated
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            self._restart(waiting)
            return self.core.observe(), rewards, ended, truncated, self._infos(list(range(self.num_envs)))
        rows = np.flatnonzero(self._over).tolist()
        final = {}
        if rows:
            final = self._final(rows)
            self._restart(rows)
        infos = self._infos(list(range(self.num_envs))) | final
        return self.core.observe(), rewards, ended, truncated, infos

    @override
    def _begin(self, rows: list[int], seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> None:
        super()._begin(rows, seeds, options)
        self._steps[rows], self._over[rows] = 0, False

    def _restart(self, rows: list[int]) -> None:
        if rows:
            self._begin(rows, [None] * len(rows), [{}] * len(rows))

    def _final(self, rows: list[int]) -> dict[str, Any]:
        """Return the ended rows' last observation and info, before a same-step reset replaces them."""
        observations = self.core.observe()
        final_obs = np.full(self.num_envs, None, dtype=object)
        for row in rows:
            final_obs[row] = observations[row]
        ended = np.isin(np.arange(self.num_envs), rows)
        final_info = self._infos(rows)
        return {
            "final_obs": final_obs,
            "_final_obs": ended,
            "final_info": final_info,
            "_final_info": ended.copy(),
        }

    def _infos(self, rows: list[int]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for row in rows:
            infos = self._add_info(infos, self.core.info(row), row)
        return infos

    @override
    def render(self) -> Any:
        """Render each row as a line of text (`ansi`) or a picture (`rgb_array`)."""
        found = self.call("render")
        return None if self.render_mode is None else found

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every row, or read an attribute, as `SyncVectorEnv` does; returns the results in order."""
        found = self.get_attr(name)
        return tuple(one(*args, **kwargs) if callable(one) else one for one in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every row."""
        check_argument("name", name, str)
        return tuple(getattr(row, name) for row in self.rows)

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of every row: to the values of a list or tuple, one per row, or all to the same value.

        Raises:
            InputError: there is not one value per row.
        """
        check_argument("name", name, str)
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        require(len(values) == self.num_envs, f"There are {len(values)} values for {self.num_envs} environments.")
        for row, value in zip(self.rows, values, strict=True):
            setattr(row, name, value)


def _read_mode(value: AutoresetMode | str) -> AutoresetMode:
    """Read an autoreset mode: a member, its value (`SameStep`) or its name (`SAME_STEP`)."""
    for mode in AutoresetMode:
        if value in (mode, mode.value, mode.name):
            return mode
    raise InputError(f"autoreset_mode is {value!r}, but it must be NextStep, SameStep or Disabled.")
