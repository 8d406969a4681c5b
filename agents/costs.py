"""Cost of a training, counted in federated rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agents.config import TrainingConfig


@dataclass
class Cost:
    """Federated rounds that a training has taken so far.

    Attributes:
        training: of the episodes that the policy learned from.
        reference: of the runs that rewards are measured against.
        validation: of the episodes that policies were chosen by.
        imitation: of the runs of a controller that the policy was cloned from.
    """

    training: int = 0
    reference: int = 0
    validation: int = 0
    imitation: int = 0

    @property
    def total(self) -> int:
        """Sum of them all."""
        return self.training + self.reference + self.validation + self.imitation


IMITATED = 32
"""Training instances that a controller plays for its clone, or all where the set has fewer."""


class ReferenceRuns:
    """Count of the reference runs that the updates of a training make necessary.

    An environment remembers its references, so an instance counts when a process first meets it. What a resumed
    training computes once more is not counted twice.
    """

    def __init__(self, processes: Sequence[int]):
        """Begin without a reference; `processes[row]` is the process that plays a row."""
        self._processes = processes
        self._met: set[tuple[int, int]] = set()

    def measured(self, instances: Sequence[int]) -> int:
        """Count the new reference runs of measuring instances, which the processes take in turn."""
        count = max(self._processes) + 1
        return self._meet({(place % count, seed) for place, seed in enumerate(instances)})

    def played(self, instances: Sequence[int]) -> int:
        """Count the new reference runs of an update; `instances[row]` is what a row plays."""
        return self._meet(set(zip(self._processes, instances, strict=True)))

    def _meet(self, places: set[tuple[int, int]]) -> int:
        new = len(places - self._met)
        self._met |= places
        return new


def rounds_ahead(config: TrainingConfig, update: int, updates: int, rounds: int, with_references: bool) -> int:
    """Estimate the federated rounds that a training still has to do, for its progress bar.

    Args:
        config: of the training.
        update: updates done; a training that begins has its first validation ahead, too.
        updates: updates in all.
        rounds: rounds of a run.
        with_references: whether every training run has a reference run beside it.
    """
    per_update = config.environments * (1 + (1 / config.episodes_per_instance if with_references else 0))
    runs = per_update * (updates - update) + (IMITATED if config.imitate and not update else 0)
    times = sum(is_validated(config, one, updates) for one in range(update + 1 if update else 0, updates + 1))
    return round((runs + times * config.validation_instances) * rounds)


def is_validated(config: TrainingConfig, update: int, updates: int) -> bool:
    """Tell whether the policy is validated after this many updates."""
    return update == updates or update % config.validation_every == 0


def decisions_per_episode(rounds: int, decision_rounds: int) -> int:
    """Decisions in an episode that ends at its last round."""
    return math.ceil(rounds / decision_rounds)
