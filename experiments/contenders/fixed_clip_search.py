"""Searching the best fixed clip norm in hindsight, and what the search costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs import EnvCore, make_core
from envs.instances import instance_seeds
from envs.playing import RowProgress
from experiments.contenders.play import Settings
from experiments.contenders.search import play_each
from policies import FixedClip

COARSE_VALUES = 9
FINE_STEPS = (-2 / 3, -1 / 3, 1 / 3, 2 / 3)
"""Second stage: these parts of a coarse step around the best coarse value, on the same instances."""


@dataclass(frozen=True)
class TunedClip:
    """The outcome of a search.

    Attributes:
        clip_norm: the value with the highest mean final accuracy.
        scores: mean final accuracy of every value tried.
        rounds: federated rounds that the search ran.
        instances: training instances each value was tried on.
        population: whose data their clients hold.
    """

    clip_norm: float
    scores: dict[float, float]
    rounds: int
    instances: int
    population: str = "proxy"

    @property
    def is_interior(self) -> bool:
        """Whether the best value lies strictly inside the range that was searched."""
        return min(self.scores) < self.clip_norm < max(self.scores)


def search_rounds(rounds: int, instances: int) -> int:
    """Federated rounds a search takes."""
    return (COARSE_VALUES + len(FINE_STEPS)) * instances * rounds


def tune_fixed_clip(settings: Settings, instances: int, progress: RowProgress, population: str = "proxy") -> TunedClip:
    """Search the clip norm with the best mean final accuracy on training instances: a log grid, then around its best.

    Args:
        settings: the environment; its own population is not used.
        instances: training instances that each value is tried on.
        progress: told of every round done.
        population: whose data the clients of those instances hold.
    """
    settings = {**settings, "instances": "train", "population": population}
    seeds = instance_seeds("train", instances)
    probe = make_core(1, **_environment(settings))
    knob = probe.knobs[0]
    coordinates = np.linspace(-1, 1, COARSE_VALUES)
    scores = _score(settings, probe, coordinates, seeds, progress)
    best = float(coordinates[int(np.argmax(scores))])
    finer = np.clip(best + np.array(FINE_STEPS) * (coordinates[1] - coordinates[0]), -1, 1)
    everything = np.concatenate([coordinates, finer])
    all_scores = np.concatenate([scores, _score(settings, probe, finer, seeds, progress)])
    values = knob.decode(everything)
    table = dict(sorted(zip(values.tolist(), all_scores.tolist(), strict=True)))
    rounds = len(everything) * len(seeds) * probe.task.federation.rounds
    return TunedClip(float(values[int(np.argmax(all_scores))]), table, rounds, instances, population)


def _environment(settings: Settings) -> dict[str, Any]:
    return {**settings, "knobs": "clip_norm", "signals": "public", "reward": "final-accuracy", "decision_rounds": 1}


def _score(
    settings: Settings, probe: EnvCore, coordinates: NDArray[np.float64], seeds: Sequence[int], progress: RowProgress
) -> NDArray[np.float64]:
    """Mean final accuracy of each constant action over the seeds."""
    values = probe.knobs[0].decode(coordinates)
    controllers = [FixedClip.for_env(probe, clip_norm=float(value)) for value in values]
    acting = [one for one in controllers for _ in seeds]
    finals = play_each(acting, list(seeds) * len(values), _environment(settings), probe, progress)
    table = np.array(finals).reshape(len(coordinates), len(seeds))
    return np.asarray(table.mean(axis=1), dtype=np.float64)
