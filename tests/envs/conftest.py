"""Short federated runs that every test of the environments can afford."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from envs import DPilotEnv

TINY: dict[str, Any] = {"task": "digits", "rounds": 5, "local_steps": 1, "executor": "vectorized"}
PLAIN = TINY | {"reward": "final-accuracy"}
"""Without the reference runs that the default reward needs."""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


def make_env(**settings: Any) -> DPilotEnv:
    return DPilotEnv(**(TINY | settings))


def play(env: gym.Env[Any, Any], actions: Any, instance: int = 3, **options: Any) -> list[tuple[Any, ...]]:
    """A whole episode: (observation, reward, terminated, info) of the reset and of every step."""
    observation, info = env.reset(seed=0, options={"instance": instance, **options})
    steps: list[tuple[Any, ...]] = [(observation, 0.0, False, info)]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(np.asarray(action, dtype=np.float32))
        assert not truncated
        steps.append((observation, reward, terminated, info))
        if terminated:
            break
    return steps


def random_actions(seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def assert_same_info(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to float tolerance; a flipped test sample moves an accuracy by less than 0.01."""
    assert set(one) == set(other)
    for name, value in one.items():
        slack = 0.01 if "accuracy" in name else 2e-3
        assert value == pytest.approx(other[name], rel=2e-3, abs=slack), name
