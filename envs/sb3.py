"""The stable-baselines3 `VecEnv` face: rows of one core, reset in the step in which they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
from typing_extensions import override

from envs.core import EnvCore, make_core
from envs.knobs import Knob
from envs.listing import Listing
from envs.render import render_frame, render_text
from envs.resets import choose_instance, read_seeds
from envs.signals import Feature
from fl_core.base.errors import require, require_count


class Row:
    """A row of a batch, with what a single environment offers: `env_method`, `get_attr` and `set_attr` address it.

    Attributes:
        core: the runs of the whole batch.
        render_mode: `ansi`, `rgb_array` or None.
        instance: the instance, by seed, that it plays in every episode; None where they are drawn.
    """

    def __init__(self, core: EnvCore, row: int, render_mode: str | None = None):
        """Take a place in a batch."""
        self.core, self._row, self.render_mode = core, row, render_mode
        self.instance: int | None = None

    @property
    def knobs(self) -> Listing[Knob]:
        """Knob of each action coordinate; prints as a table."""
        return self.core.knobs

    @property
    def signals(self) -> Listing[Feature]:
        """Feature of each observation entry; prints as a table."""
        return self.core.features

    @property
    def observation_space(self) -> spaces.Box:
        """Space of its observation."""
        return self.core.observation_space

    @property
    def action_space(self) -> spaces.Box:
        """Space of its action."""
        return self.core.action_space

    def set_instances(self, seeds: Sequence[int]) -> None:
        """Set the instance, by seed, that it plays again and again from its next reset on: a list of one.

        Raises:
            InputError: there is not exactly one.
        """
        require(len(seeds) == 1, f"There are {len(seeds)} seeds for 1 environment.")
        self.instance = seeds[0]

    def references(self, seeds: Sequence[int]) -> list[float]:
        """Return the final accuracy of the default clip norm on each instance, the baseline of rewards."""
        return self.core.references(seeds)

    def render(self) -> Any:
        """Render the episode as a line of text (`ansi`) or a picture (`rgb_array`)."""
        if self.render_mode == "ansi":
            return render_text(self.core, self._row)
        return render_frame(self.core, self._row) if self.render_mode == "rgb_array" else None


def named_rows(indices: VecEnvIndices, count: int) -> list[int]:
    """List the rows that indices name, as stable-baselines3 reads them: None for all, negative ones from the end.

    Raises:
        IndexError: there is no such row.
    """
    asked = range(count) if indices is None else np.atleast_1d(np.asarray(indices))
    return [range(count)[int(index)] for index in asked]


class DPilotVecEnv(VecEnv):
    """A batch of federated runs for stable-baselines3. Arguments are those of `DPilotEnv`.

    For `rollout/ep_rew_mean` and its like wrap it in stable-baselines3's `VecMonitor`, as any `VecEnv`.

    `set_instances` fixes the instance that each row plays; without it a seed chooses within the spec's set, or they are
    drawn from it.
    """

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **settings: Any):
        """Build the batch.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        require_count("num_envs", num_envs)
        self.core: EnvCore = make_core(num_envs, **settings)
        self.rows = [Row(self.core, row, render_mode) for row in range(num_envs)]
        super().__init__(num_envs, self.core.observation_space, self.core.action_space)
        self._randoms = [np.random.default_rng() for _ in range(num_envs)]
        self._actions: NDArray[Any] = np.zeros((num_envs, 0))

    def set_instances(self, seeds: Sequence[int]) -> None:
        """Set the instance, by seed, that each row plays again and again from its next reset on.

        Raises:
            InputError: there is not one per row.
        """
        require(len(seeds) == self.num_envs, f"There are {len(seeds)} seeds for {self.num_envs} environments.")
        for row, seed in zip(self.rows, seeds, strict=True):
            row.instance = seed

    def references(self, seeds: Sequence[int]) -> list[float]:
        """Return the final accuracy of the default clip norm on each instance, the baseline of rewards."""
        return self.core.references(seeds)

    @override
    def reset(self) -> NDArray[np.float32]:
        seeds = read_seeds(self._seeds, self.num_envs)
        for row, seed in enumerate(seeds):
            if seed is not None:
                self._randoms[row] = np.random.default_rng(seed)
        self._start(list(range(self.num_envs)), seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [self.core.info(row) for row in range(self.num_envs)]
        return self.core.observe()

    def _start(self, rows: list[int], seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> None:
        settings = [
            choose_instance(self.core.pool, self._randoms[row], seed, chosen, self.rows[row].instance)
            for row, seed, chosen in zip(rows, seeds, options, strict=True)
        ]
        self.core.reset(rows, settings)

    @override
    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    @override
    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        rewards, ended = self.core.step(self._actions)
        infos = [self.core.info(row) | {"TimeLimit.truncated": False} for row in range(self.num_envs)]
        rows = [int(row) for row in np.flatnonzero(ended)]
        if rows:
            last = self.core.observe()
            for row in rows:
                infos[row]["terminal_observation"] = last[row]
            self._start(rows, [None] * len(rows), [{}] * len(rows))
            for row in rows:
                self.reset_infos[row] = self.core.info(row)
        return self.core.observe(), rewards.astype(np.float32), ended, infos

    @override
    def close(self) -> None:
        pass  # there are no resources to release

    @override
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(row, attr_name) for row in self._named(indices)]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        for row in self._named(indices):
            setattr(row, attr_name, value)

    @override
    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        return [getattr(row, method_name)(*method_args, **method_kwargs) for row in self._named(indices)]

    @override
    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._named(indices)]

    @override
    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return [render_frame(self.core, row) for row in range(self.num_envs)]

    def _named(self, indices: VecEnvIndices) -> list[Row]:
        return [self.rows[row] for row in named_rows(indices, self.num_envs)]
