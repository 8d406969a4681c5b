"""Controllers whose actions are clipped to [-1, 1], while the environment may see them before, and counts those."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

State = TypeVar("State")


class BoundedController(ABC, Generic[State]):
    """A controller with the `predict` of a stable-baselines3 model."""

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], State]:
        """Choose actions for observations, float32 in [-1, 1]; arguments and errors are those of `predict_unclipped`.

        Returns:
            Actions `[knobs]` or `[n, knobs]`, and the state for the next call.
        """
        actions, state = self.predict_unclipped(observation, state, episode_start, deterministic)
        return np.clip(actions, -1.0, 1.0), state

    @abstractmethod
    def predict_unclipped(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: State | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], State]:
        """Choose actions as `predict` does, before those outside [-1, 1] are clipped.

        Args:
            observation: `[features]` or `[n, features]`.
            state: what the call before returned; None at first.
            episode_start: whether each observation is the first of an episode `[n]`.
            deterministic: whether to take the policy's mode instead of a sample.

        Raises:
            InputError: the observation is of another environment.
        """
