"""Baseline of rewards by instance: what environments on the same instance have in common tells nothing about actions.

Instances differ more in what can be reached on them than policies do. Where several environments play the same one, the
mean of their final rewards is subtracted from each (Kool et al. 2019; Shao et al. 2024), and the advantages follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import RolloutBuffer


def subtract_means(buffer: RolloutBuffer, instances: Sequence[int], values: Any, dones: Any) -> None:
    """Subtract from every last reward of an episode the mean of those on the same instance, and compute advantages.

    Args:
        buffer: a full rollout.
        instances: what each environment has played `[environments]`.
        values: of the observations after the last step `[environments]`.
        dones: whether the last step ended an episode `[environments]`.
    """
    ended = np.concatenate([buffer.episode_starts[1:], np.asarray(dones, dtype=np.float32)[None]]) > 0
    played = np.asarray(instances)
    for one in np.unique(played):
        here = ended & (played == one)[None]
        if here.any():
            buffer.rewards[here] -= buffer.rewards[here].mean()
    buffer.compute_returns_and_advantage(last_values=values, dones=np.asarray(dones))
