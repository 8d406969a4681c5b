"""A learner takes over the state of one of its kind alone."""

from __future__ import annotations

import warnings
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from agents.learners import _load_replay, _replay_tensors, played_episodes, recall_episodes
from tests.fuzz import VALUES


def learner() -> Any:
    """A learner with a replay buffer of four decisions, two of them taken."""
    box = spaces.Box(-1.0, 1.0, (3,), np.float32)
    buffer = ReplayBuffer(4, box, spaces.Box(-1.0, 1.0, (1,), np.float32), device="cpu")
    for number in (0.25, 0.5):
        seen, action = np.full((1, 3), number, np.float32), np.full((1, 1), -number, np.float32)
        buffer.add(seen, seen, action, np.array([number]), np.array([False]), [{}])
    return SimpleNamespace(replay_buffer=buffer, ep_info_buffer=deque(), _episode_num=0, _stats_window_size=3)


def test_replayed_decisions_come_back() -> None:
    tensors, fresh = _replay_tensors(learner()), learner()
    fresh.replay_buffer.reset()
    _load_replay(fresh, tensors)
    assert all(torch.equal(value, tensors[name]) for name, value in _replay_tensors(fresh).items())
    assert fresh.replay_buffer.pos == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rewards", torch.full((2, 1), 1e300, dtype=torch.float64)),
        ("rewards", torch.zeros(1, 1)),
        ("observations", torch.zeros(2, 1, 2)),
        ("actions", torch.zeros(2, 1, 1, dtype=torch.bfloat16)),
        ("position", torch.tensor([9, 0])),
        ("position", torch.tensor([-1, 0])),
        ("position", torch.tensor([1, 7])),
        ("position", torch.tensor([1.5, 0.0])),
        ("position", torch.tensor([1])),
    ],
)
def test_replayed_decisions_of_another_type_or_shape_are_refused(name: str, value: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="replay"):
            _load_replay(learner(), _replay_tensors(learner()) | {f"replay/{name}": value})


def test_rewards_beyond_single_precision_are_refused_without_a_warning() -> None:
    model = learner()
    recall_episodes(model, 2, [[0.1, 3.0], [-2.0, 3.0]])
    assert played_episodes(model) == (2, [[float(np.float32(0.1)), 3.0], [-2.0, 3.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for reward in (one for one in VALUES if isinstance(one, float) and abs(one) > 1e39):
            with pytest.raises(ValueError, match="reward is"):
                recall_episodes(model, 1, [[reward, 3.0]])
