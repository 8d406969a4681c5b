"""Curricula: the order in which a training plays its instances.

The instances of an update follow from the seed, the number of the update and the scores in the checkpoint, so that a
training that goes on after an interruption plays what it would have played. Adding a curriculum is writing its choice
of an update's instances and adding a line to `CURRICULA`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from envs.instances import instance_seeds
from fl_core.base.libraries import numpy as np

Scores = Mapping[str, float]
"""Scores that a curriculum goes by, by the instance's seed (as text, because JSON has no other keys)."""
_REPLAY = 1 << 30


class Instances:
    """Training instances in the order in which they are played."""

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
        """Choose the seeds of the instances that the rows play in an update.

        Args:
            update: number of the update, from 0.
            scores: of instances, as the curriculum wants them.
        """
        different = CURRICULA[self._curriculum].choose(self, update, scores or {})
        return [different[row // self._repeats] for row in range(self._rows)]

    def to_measure(self) -> list[int]:
        """Instances whose difficulty the curriculum has to know before the first update."""
        if not CURRICULA[self._curriculum].measured:
            return []
        return sorted({self._at(position) for position in range(self._positions)})

    def _at(self, position: int) -> int:
        turn, place = divmod(position, len(self._pool))
        order = np.random.default_rng([self._seed, turn]).permutation(len(self._pool))
        return self._pool[int(order[place])]

    def uniform(self, update: int, scores: Scores) -> list[int]:
        """Choose the next instances of a random permutation; the scores play no part."""
        return [self._at(update * self._different + place) for place in range(self._different)]

    def easy_first(self, update: int, scores: Scores) -> list[int]:
        """Choose from the instances that `uniform` plays in the whole training, by falling score."""
        whole = [self._at(position) for position in range(self._positions)]
        order = sorted(whole, key=lambda one: (-scores[str(one)], one))
        return order[update * self._different : (update + 1) * self._different]

    def prioritized(self, update: int, scores: Scores) -> list[int]:
        """Choose half new instances, and half with a score, drawn with a probability of 1 / rank, the lowest first."""
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
        """Next instance that has not been played yet, or, when all have been, the next of another pass."""
        return self._at(known + place if known < len(self._pool) else update * self._different + place)


def mean_by_instance(instances: Sequence[int], rewards: Sequence[float]) -> dict[str, float]:
    """Mean reward of the rows that played each instance."""
    grouped: dict[str, list[float]] = {}
    for seed, reward in zip(instances, rewards, strict=True):
        grouped.setdefault(str(seed), []).append(float(reward))
    return {seed: float(np.mean(values)) for seed, values in grouped.items()}


@dataclass(frozen=True)
class Curriculum:
    """A line of the catalogue.

    Attributes:
        summary: order of its instances, for lists.
        choose: seeds of the different instances of an update, from the pool, the update's number and the scores.
        measured: whether scores are the final accuracies of uncontrolled runs, measured before the first update;
            otherwise they are the policy's latest rewards.
    """

    summary: str
    choose: Callable[[Instances, int, Scores], list[int]]
    measured: bool = False


CURRICULA: dict[str, Curriculum] = {
    "uniform": Curriculum("a new random permutation of the instances for every pass", Instances.uniform),
    "easy-first": Curriculum(
        "the same instances as uniform, by growing difficulty: those first on which the task's default clip norm ends "
        "best (Bengio et al. 2009)",
        Instances.easy_first,
        measured=True,
    ),
    "prioritized": Curriculum(
        "half of them new, half known, drawn by the rank of the policy's latest reward, the lowest most often (Jiang "
        "et al. 2021)",
        Instances.prioritized,
    ),
}
