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
        self._expected: dict[RunSettings, list[RunSettings]] = {}

    @cached_property
    def _config(self) -> FederationConfig:
        """Federation without telemetry; made late, as most environments never need it."""
        return replace(self._task.federation, telemetry_share=0.0, bit_noise=0.0)

    def expect(self, settings: Sequence[RunSettings]) -> None:
        """Note instances whose references will be asked for, to be played as one batch when the first of them is.

        A batch rounds sums as its size wants it, so that what is played together must not depend on who ends first.
        """
        batch = list(dict.fromkeys(one for one in settings if one not in self._known and one not in self._expected))
        self._expected |= dict.fromkeys(batch, batch)

    def find(self, settings: Sequence[RunSettings]) -> list[float]:
        """Return the default clip norm's final accuracy on each instance; those not known are played as one batch."""
        self.expect(settings)
        for one in settings:
            if one not in self._known:
                self._play(self._expected[one])
        return [self._known[one] for one in settings]

    def _play(self, batch: Sequence[RunSettings]) -> None:
        with torch.random.fork_rng(devices=[]):  # exploration must not depend on what is known already
            fleet = Fleet(self._config, len(batch), self._generator.shapes)
        fleet.prepare(range(len(batch)), batch, [self._generator.shape_of(one.seed) for one in batch])()
        plan = RoundPlan.constant(len(batch), self._task.clip_norm)
        going = ~fleet.over
        while going.any():
            report = fleet.run_round(plan, going)
            going &= ~(fleet.over | report.refused)  # a method that spends its budget early ends its run there
        self._remember(batch, fleet.evaluate())
        for one in batch:
            del self._expected[one]

    def _remember(self, settings: Sequence[RunSettings], metrics: Mapping[str, FloatArray]) -> None:
        for one, accuracy in zip(settings, metrics[self._accuracy], strict=True):
            self._known[one] = float(accuracy)
