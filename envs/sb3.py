"""The stable-baselines3 `VecEnv` face: rows of one core, reset in the step in which they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
from typing_extensions import override

from envs.core import EnvCore, make_core, run_settings
from envs.render import render_frame
from fl_core.base.errors import require, require_count


class DPilotVecEnv(VecEnv):
    """A batch of federated runs for stable-baselines3. Arguments are those of `DPilotEnv`.

    For `rollout/ep_rew_mean` and its like wrap it in stable-baselines3's `VecMonitor`, as any `VecEnv`.

    `set_instances` fixes the instance that each row plays; without it they are drawn from the spec's set.
    """

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **settings: Any):
        """Build the batch.

        Raises:
            InputError: a name is unknown or a value is not allowed.
        """
        require_count("num_envs", num_envs)
        self.core: EnvCore = make_core(num_envs, **settings)
        self.render_mode = render_mode
        super().__init__(num_envs, self.core.observation_space, self.core.action_space)
        self._randoms = [np.random.default_rng() for _ in range(num_envs)]
        self._instances: list[int] = []
        self._actions: NDArray[Any] = np.zeros((num_envs, 0))

    def set_instances(self, seeds: Sequence[int]) -> None:
        """Set the instance, by seed, that each row plays again and again from its next reset on.

        Raises:
            InputError: there is not one per row.
        """
        require(len(seeds) == self.num_envs, f"There are {len(seeds)} seeds for {self.num_envs} environments.")
        self._instances = list(seeds)

    def references(self, seeds: Sequence[int]) -> list[float]:
        """Return the final accuracy of the default clip norm on each instance, the baseline of rewards."""
        return self.core.references(seeds)

    @override
    def reset(self) -> NDArray[np.float32]:
        for row, seed in enumerate(self._seeds):
            if seed is not None:
                self._randoms[row] = np.random.default_rng(seed)
        self._start(list(range(self.num_envs)), self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [self.core.info(row) for row in range(self.num_envs)]
        return self.core.observe()

    def _start(self, rows: list[int], seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> None:
        settings = []
        for row, seed, chosen in zip(rows, seeds, options, strict=True):
            if seed is None:
                seed = self._instances[row] if self._instances else self.core.draw_instance(self._randoms[row]).seed
            settings.append(run_settings(seed, chosen))
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
        owner = self if hasattr(type(self), attr_name) or attr_name in vars(self) else self.core
        return [getattr(owner, attr_name) for _ in self._indices(indices)]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        setattr(self, attr_name, value)

    @override
    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        result = getattr(self, method_name)(*method_args, **method_kwargs)
        return [result for _ in self._indices(indices)]

    @override
    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._indices(indices)]

    @override
    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return [render_frame(self.core, row) for row in range(self.num_envs)]

    def _indices(self, indices: VecEnvIndices) -> Iterable[int]:
        return self._get_indices(indices)
