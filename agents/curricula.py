"""Curricula: which training instances an update plays.

What is played follows from the seed, the number of the update and what the checkpoint remembers of the updates before,
so that a training that goes on after an interruption plays what it would have played.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.instances import instance_seeds

Scores = Mapping[str, float]
"""By the instance's seed, as JSON has keys: what a curriculum goes by."""
_REPLAY = 1 << 30


@dataclass(frozen=True)
class Curriculum:
    """A line of the catalogue.

    Attributes:
        summary: what it plays.
        measured: whether scores are the final accuracies of uncontrolled runs, measured before the first update;
            otherwise they are the policy's latest rewards.
    """

    summary: str
    measured: bool = False


CURRICULA: dict[str, Curriculum] = {
    "uniform": Curriculum("a new random permutation of the instances for every pass"),
    "easy-first": Curriculum(
        "the same instances as uniform, by growing difficulty: those first on which the task's default clip norm ends "
        "best (Bengio et al. 2009)",
        measured=True,
    ),
    "prioritized": Curriculum(
        "half of them new, half known, drawn by the rank of the policy's latest reward, the lowest most often (Jiang "
        "et al. 2021)"
    ),
}


class Instances:
    """The training instances in the order in which they are played."""

    def __init__(
        self, count: int, seed: int, rows: int, repeats: int = 1, curriculum: str = "uniform", updates: int = 1
    ):
        """Prepare the order of the first `count` training instances for batches of rows.

        Args:
            count: size of the set.
            seed: of the order.
            rows: environments that play at a time.
            repeats: neighbouring rows that play the same instance.
            curriculum: a name of `CURRICULA`.
            updates: of the training, over which difficulty grows.
        """
        self._pool = instance_seeds("train", count)
        self._seed = seed
        self._rows = rows
        self._repeats = repeats
        self._curriculum = curriculum
        self._different = math.ceil(rows / repeats)
        self._positions = updates * self._different

    def of_update(self, update: int, scores: Scores | None = None) -> list[int]:
        """Seeds of the instances that the rows play in an update, counted from 0.

        Args:
            update: number of the update.
            scores: of instances, as the curriculum wants them.
        """
        if self._curriculum == "easy-first":
            different = self._easy_first(update, scores or {})
        elif self._curriculum == "prioritized":
            different = self._prioritized(update, scores or {})
        else:
            different = [self._at(update * self._different + place) for place in range(self._different)]
        return [different[row // self._repeats] for row in range(self._rows)]

    def to_measure(self) -> list[int]:
        """The instances whose difficulty the curriculum has to know before the first update."""
        if not CURRICULA[self._curriculum].measured:
            return []
        return sorted({self._at(position) for position in range(self._positions)})

    def _at(self, position: int) -> int:
        turn, place = divmod(position, len(self._pool))
        order = np.random.default_rng([self._seed, turn]).permutation(len(self._pool))
        return self._pool[int(order[place])]

    def _easy_first(self, update: int, scores: Scores) -> list[int]:
        """What uniform would play in the whole training, from the highest score to the lowest."""
        whole = [self._at(position) for position in range(self._positions)]
        order = sorted(whole, key=lambda one: (-scores[str(one)], one))
        return order[update * self._different : (update + 1) * self._different]

    def _prioritized(self, update: int, scores: Scores) -> list[int]:
        """Half new; the rest from those with a score, with a probability of 1 / rank, the lowest score first."""
        known = sorted(scores, key=lambda one: (scores[one], int(one)))
        replayed = min(self._different // 2, len(known))
        random = np.random.default_rng([self._seed, update, _REPLAY])
        weights = 1 / np.arange(1, len(known) + 1)
        new = [self._new(update, place, len(known)) for place in range(self._different - replayed)]
        if not replayed:
            return new
        again = random.choice(len(known), replayed, replace=False, p=weights / weights.sum())
        return [*new, *(int(known[index]) for index in again.tolist())]

    def _new(self, update: int, place: int, known: int) -> int:
        """An instance that has not been played yet, or, when all have been, the next of another pass."""
        return self._at(known + place if known < len(self._pool) else update * self._different + place)


def mean_by_instance(instances: Sequence[int], rewards: Sequence[float]) -> dict[str, float]:
    """Mean reward of the rows that played each instance."""
    grouped: dict[str, list[float]] = {}
    for seed, reward in zip(instances, rewards, strict=True):
        grouped.setdefault(str(seed), []).append(float(reward))
    return {seed: float(np.mean(values)) for seed, values in grouped.items()}
