"""Search for the best fixed clip norm in hindsight, with its cost in federated rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs import EnvCore, Setting
from envs.instances import instance_seeds
from experiments.contenders.environments import Environments
from experiments.contenders.prior import prior_rounds, spread_evenly
from experiments.contenders.search import play_each
from experiments.contenders.specs import COARSE_VALUES
from experiments.records.costs import PriorRounds
from experiments.workers.runner import Plan
from policies import FixedClip

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
        releases: what these rounds released.
    """

    clip_norm: float
    scores: dict[float, float]
    rounds: int
    instances: int
    population: str
    releases: tuple[PriorRounds, ...] = ()

    @property
    def is_interior(self) -> bool:
        """True if the best value lies strictly inside the range that was searched."""
        return min(self.scores) < self.clip_norm < max(self.scores)


class FixedClipSearch:
    """A search for the clip norm with the best mean final accuracy on training instances, ready to run.

    It tries a log grid over the knob's range, then values around the best of them, on the same instances.

    Attributes:
        rounds: federated rounds that it takes.
    """

    def __init__(self, setting: Setting, core: EnvCore, environments: Environments, instances: int):
        """Prepare the search.

        Args:
            setting: of the training instances, with the clip norm as its only knob.
            core: an environment that shows and asks the same.
            environments: where those that play come from.
            instances: training instances that each value is tried on.
        """
        self._setting, self._core, self._environments = setting, core, environments
        self._seeds = instance_seeds("train", instances)
        values = COARSE_VALUES + len(FINE_STEPS)
        self.rounds = values * instances * setting.federation.rounds

    def plan(self) -> Plan[TunedClip]:
        """Search, and return the best value with every score."""
        knob = self._core.knobs[0]
        coordinates = np.linspace(-1, 1, COARSE_VALUES)
        scores = yield from self._score(coordinates)
        best = float(coordinates[int(np.argmax(scores))])
        finer = np.clip(best + np.array(FINE_STEPS) * (coordinates[1] - coordinates[0]), -1, 1)
        finer_scores = yield from self._score(finer)
        all_scores = np.concatenate([scores, finer_scores])
        values = knob.decode(np.concatenate([coordinates, finer]))
        return TunedClip(
            clip_norm=float(values[int(np.argmax(all_scores))]),
            scores=dict(sorted(zip(values.tolist(), all_scores.tolist(), strict=True))),
            rounds=self.rounds,
            instances=len(self._seeds),
            population=self._setting.federation.population,
            releases=prior_rounds(self._core, spread_evenly(self.rounds, self._seeds)),
        )

    def _score(self, coordinates: NDArray[np.float64]) -> Plan[NDArray[np.float64]]:
        """Compute the mean final accuracy of each constant action over the seeds."""
        values = self._core.knobs[0].decode(coordinates)
        controllers = [FixedClip.for_env(self._core, clip_norm=float(value)) for value in values]
        acting = [one for one in controllers for _ in self._seeds]
        seeds = list(self._seeds) * len(values)
        finals = yield from play_each(acting, seeds, self._setting, self._environments)
        table = np.array(finals).reshape(len(coordinates), len(self._seeds))
        return np.asarray(table.mean(axis=1), dtype=np.float64)
