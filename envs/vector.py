"""The `gymnasium.vector.VectorEnv` face: many runs, rows of one core, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from typing_extensions import override

from envs.core import make_core
from envs.render import render_frame, render_text
from envs.resets import Seeds, choose_instance, options_of_row, read_seeds
from fl_core.base.errors import InputError, require_count

Float32Array = NDArray[np.float32]


class DPilotVectorEnv(VectorEnv[Float32Array, Float32Array, Any]):
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
        **settings: Any,
    ):
        """Build the batch.

        Args:
            num_envs: rows of the batch.
            render_mode: `ansi` or `rgb_array`, one picture per row.
            autoreset_mode: NEXT_STEP (a finished row is reset by the following step, which ignores its action) or
                SAME_STEP (at once; the last observation is in `info["final_obs"]`).
            **settings: see `DPilotEnv`.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        require_count("num_envs", num_envs)
        try:
            self._mode = AutoresetMode(autoreset_mode)
        except ValueError:
            self._mode = AutoresetMode.DISABLED
        if self._mode == AutoresetMode.DISABLED:
            raise InputError(f"autoreset_mode is {autoreset_mode!r}, but it must be NextStep or SameStep.")
        self.core = make_core(num_envs, **settings)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {**type(self).metadata, "autoreset_mode": self._mode}
        self.single_observation_space = self.core.observation_space
        self.single_action_space = self.core.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._randoms = [np.random.default_rng() for _ in range(num_envs)]

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
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, dtype=bool)))
        rows = [int(row) for row in np.flatnonzero(mask)]
        for row in rows:
            if seeds[row] is not None:
                self._randoms[row] = np.random.default_rng(seeds[row])
        self._start(rows, [seeds[row] for row in rows], options)
        return self.core.observe(), self._infos(rows)

    def _start(self, rows: list[int], seeds: Sequence[int | None], options: dict[str, Any]) -> None:
        settings = [
            choose_instance(self.core.pool, self._randoms[row], seed, options_of_row(options, row, self.num_envs))
            for row, seed in zip(rows, seeds, strict=True)
        ]
        self.core.reset(rows, settings)

    @override
    def step(
        self, actions: Float32Array
    ) -> tuple[Float32Array, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply one decision to every row; finished rows are reset as the autoreset mode says."""
        waiting = [int(row) for row in np.flatnonzero(self.core.finished)]
        rewards, ended = self.core.step(actions)
        truncated = np.zeros(self.num_envs, dtype=bool)
        if self._mode == AutoresetMode.NEXT_STEP:
            if waiting:
                self._start(waiting, [None] * len(waiting), {})
            return self.core.observe(), rewards, ended, truncated, self._infos(list(range(self.num_envs)))
        rows = [int(row) for row in np.flatnonzero(ended)]
        final = {}
        if rows:
            final = self._final(rows)
            self._start(rows, [None] * len(rows), {})
        infos = self._infos(list(range(self.num_envs))) | final
        return self.core.observe(), rewards, ended, truncated, infos

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
        if self.render_mode == "ansi":
            return tuple(render_text(self.core, row) for row in range(self.num_envs))
        if self.render_mode == "rgb_array":
            return tuple(render_frame(self.core, row) for row in range(self.num_envs))
        return None
