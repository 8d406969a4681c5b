"""A small federation, and the final accuracy of a fixed clip norm in it, by a plain play of its environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs import make_core
from envs.playing import run_to_the_end
from fl_core.run.config import RunSettings
from policies import FixedClip

SMALL: dict[str, Any] = {
    "task": "digits",
    "clients": 6,
    "rounds": 4,
    "local_steps": 1,
    "executor": "vectorized",
    "evaluation_samples": 50,
}


def mean_accuracy(rounds: int, seeds: Sequence[int], population: str, clip_norm: float) -> float:
    """Play a clip norm for so many rounds on every seed; returns the mean final accuracy."""
    core = make_core(len(seeds), **SMALL | {"rounds": rounds}, population=population, reward="final-accuracy")
    policy = FixedClip.for_env(core, clip_norm=clip_norm)
    run_to_the_end(core, policy, [RunSettings(seed=seed) for seed in seeds], lambda _: None)
    return sum(core.final_accuracy(row) for row in range(core.runs)) / core.runs
