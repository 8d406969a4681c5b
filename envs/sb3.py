"""The stable-baselines3 `VecEnv` face: rows of one core, reset in the step in which they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
from typing_extensions import override

from envs.render import render_frame
from envs.resets import read_seeds
from envs.rows import Batch, Row
from fl_core.base.arguments import check_argument
from fl_core.base.errors import require


def named_rows(indices: VecEnvIndices, count: int) -> list[int]:
    """List the rows that indices name, as stable-baselines3 reads them: None for all, negative ones from the end.

    Raises:
        InputError: one is not a whole number.
        IndexError: there is no such row.
    """
    asked = list(range(count)) if indices is None else np.atleast_1d(np.asarray(indices)).tolist()
    for index in asked:
        told = f"indices holds {index!r}, but an environment has a whole number from {-count} to {count - 1}."
        require(isinstance(index, int) and not isinstance(index, bool), told)
        if not -count <= index < count:
            raise IndexError(told)
    return [range(count)[index] for index in asked]


class DPilotVecEnv(Batch, VecEnv):
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
        Batch.__init__(self, num_envs, render_mode, settings)
        VecEnv.__init__(self, num_envs, self.core.observation_space, self.core.action_space)
        self._actions: NDArray[Any] = np.zeros((num_envs, 0))

    @override
    def reset(self) -> NDArray[np.float32]:
        seeds = read_seeds(self._seeds, self.num_envs)
        self._begin(list(range(self.num_envs)), seeds, self._options)
        return self._begun()

    def _begun(self) -> NDArray[np.float32]:
        """Return what a reset returns, once all rows have begun."""
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [self.core.info(row) for row in range(self.num_envs)]
        return self.core.observe()

    @override
    def step_async(self, actions: NDArray[Any]) -> None:
        self._require_begun()
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
            self._begin(rows, [None] * len(rows), [{}] * len(rows))
            for row in rows:
                self.reset_infos[row] = self.core.info(row)
        return self.core.observe(), rewards.astype(np.float32), ended, infos

    @override
    def close(self) -> None:
        pass  # there are no resources to release

    @override
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        check_argument("attr_name", attr_name, str)
        return [getattr(row, attr_name) for row in self._named(indices)]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        check_argument("attr_name", attr_name, str)
        for row in self._named(indices):
            setattr(row, attr_name, value)

    @override
    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        check_argument("method_name", method_name, str)
        methods = [getattr(row, method_name) for row in self._named(indices)]
        for one in methods:
            require(callable(one), f"'{method_name}' is no method of an environment; get_attr reads it.")
        return [one(*method_args, **method_kwargs) for one in methods]

    @override
    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._named(indices)]

    @override
    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return [render_frame(self.core, row) for row in range(self.num_envs)]

    def _named(self, indices: VecEnvIndices) -> list[Row]:
        return [self.rows[row] for row in named_rows(indices, self.num_envs)]
