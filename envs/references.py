"""Reference of rewards: the final accuracy of the task's default clip norm on the same instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch

from envs.fleet import Fleet
from envs.generators import Generator
from envs.tasks import Task
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.plan import FloatArray, RoundPlan


class ReferenceAccuracies:
    """Final accuracies of runs at the default clip norm, without telemetry; each is played once and its result kept."""

    def __init__(self, task: Task, generator: Generator, accuracy: str):
        """Prepare for a task; nothing is played yet.

        Args:
            task: with its overrides.
            generator: distribution of the instances, which gives each run its shape.
            accuracy: the figure that runs are judged by.
        """
        self._task, self._generator, self._accuracy = task, generator, accuracy
        self._known: dict[RunSettings, float] = {}

    @cached_property
    def _config(self) -> FederationConfig:
        """Federation without telemetry; made late, as most environments never need it."""
        return replace(self._task.federation, telemetry_share=0.0, bit_noise=0.0)

    def find(self, settings: Sequence[RunSettings]) -> list[float]:
        """Return the default clip norm's final accuracy on each instance; those not known are played as one batch."""
        missing = list(dict.fromkeys(one for one in settings if one not in self._known))
        if missing:
            with torch.random.fork_rng(devices=[]):  # exploration must not depend on what is known already
                fleet = Fleet(self._config, len(missing), self._generator.shapes)
            fleet.start(range(len(missing)), missing, [self._generator.shape_of(one.seed) for one in missing])
            plan = RoundPlan.constant(len(missing), self._task.clip_norm)
            going = ~fleet.over
            while going.any():
                report = fleet.run_round(plan, going)
                going &= ~(fleet.over | report.refused)  # a method that spends its budget early ends its run there
            self._remember(missing, fleet.evaluate())
        return [self._known[one] for one in settings]

    def _remember(self, settings: Sequence[RunSettings], metrics: Mapping[str, FloatArray]) -> None:
        for one, accuracy in zip(settings, metrics[self._accuracy], strict=True):
            self._known[one] = float(accuracy)
