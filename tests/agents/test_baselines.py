"""Rewards relative to those on the same instance."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from agents.baselines import subtract_means


def filled(rewards: np.ndarray, starts: np.ndarray) -> RolloutBuffer:
    steps, rows = rewards.shape
    buffer = RolloutBuffer(steps, spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)), gamma=1.0, n_envs=rows)
    zeros = np.zeros((rows, 1), dtype=np.float32)
    for step in range(steps):
        buffer.add(zeros, zeros, rewards[step], starts[step], torch.zeros(rows), torch.zeros(rows))
    return buffer


def test_every_last_reward_loses_the_mean_of_its_instance_and_the_others_stay() -> None:
    rewards = np.array([[0.0, 0, 0, 0], [1, 3, 0, 0], [0, 0, 0, 0], [2, 6, 5, 9]], dtype=np.float32)
    starts = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=np.float32)
    buffer = filled(rewards, starts)
    subtract_means(buffer, [7, 7, 8, 8], torch.zeros(4), np.ones(4, dtype=bool))
    ends = np.array([[0, 0, 0, 0], [-2, 0, 0, 0], [0, 0, 0, 0], [-1, 3, -2, 2]], dtype=np.float32)
    np.testing.assert_allclose(buffer.rewards, ends)
    np.testing.assert_allclose(buffer.returns[:, 0], [-2, -2, -1, -1], err_msg="returns follow the rewards")
    np.testing.assert_allclose(buffer.returns[:, 3], [2, 2, 2, 2])


def test_an_episode_that_goes_on_has_no_last_reward() -> None:
    rewards = np.array([[4.0, 0], [0, 6]], dtype=np.float32)
    starts = np.array([[1, 1], [1, 0]], dtype=np.float32)
    buffer = filled(rewards, starts)
    subtract_means(buffer, [7, 7], torch.zeros(2), np.array([False, True]))
    np.testing.assert_allclose(buffer.rewards, [[-1, 0], [0, 1]])
