"""Search for the parameters of a schedule family on training instances, by successive halving over a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs import EnvCore, Setting
from envs.acting import Policy
from envs.instances import instance_seeds
from envs.playing import RowProgress, run_to_the_end
from experiments.contenders.environments import Environments
from experiments.contenders.play import CODE
from experiments.contenders.prior import prior_rounds
from experiments.records.costs import PriorRounds
from experiments.records.finished import Job
from experiments.workers.runner import Plan, Work
from fl_core.base.bounds import is_number
from fl_core.base.code_version import code_version
from fl_core.base.errors import InputError, require
from fl_core.base.text import short
from fl_core.run.config import RunSettings
from policies.base import Controller
from policies.specs import ControllerSpec
from policies.view import View

GRID_POINTS = {1: 13, 2: 6}
"""Values of each parameter that is searched over a knob's range, by how many such parameters there are."""
FEWEST_POINTS = 4
FEWEST_INSTANCES = 2
"""Instances that every candidate is tried on, where there are so many."""
KEPT = 3
"""One in so many candidates goes on to more instances."""

Candidate = Mapping[str, float]


@dataclass(frozen=True)
class TunedFamily:
    """The outcome of a search.

    Attributes:
        values: parameters of the best candidate.
        score: its mean final accuracy on all the instances.
        candidates: how many parameter settings were tried.
        runs, rounds: federated runs, and their rounds, that the search took.
        instances: training instances that the last candidates were tried on.
        population: whose data their clients hold.
        releases: what these rounds released.
    """

    values: Candidate
    score: float
    candidates: int
    runs: int
    rounds: int
    instances: int
    population: str
    releases: tuple[PriorRounds, ...]


@dataclass(frozen=True)
class Rung:
    """A stage of the search: so many candidates have been tried on so many instances when it ends."""

    candidates: int
    instances: int


def grid(spec: ControllerSpec, view: View) -> list[dict[str, float]]:
    """List the parameter settings that a search of a family tries, those given in the spec fixed.

    Raises:
        InputError: there is nothing to search.
    """
    given = spec.named_parameters()
    free = [one for one in spec.controller.parameters if one.name not in given]
    ranged = sum(1 for one in free if not one.search and view.knobs_of(one.knob))
    points = GRID_POINTS.get(ranged, FEWEST_POINTS)
    axes = [one.candidates(next(iter(view.knobs_of(one.knob)), None), points) for one in free]
    require(any(axes), f"controller 'tuned:{spec}' leaves nothing to search; name a family without its parameters.")
    names = [one.name for one, axis in zip(free, axes, strict=True) if axis]
    products = itertools.product(*(axis for axis in axes if axis))
    return [given | dict(zip(names, values, strict=True)) for values in products]


def rungs(candidates: int, instances: int) -> tuple[Rung, ...]:
    """Plan the stages of a search: a third of the candidates goes on to twice as many instances, up to all."""
    levels = [instances]
    while levels[0] > FEWEST_INSTANCES:
        levels.insert(0, math.ceil(levels[0] / 2))
    return tuple(Rung(math.ceil(candidates / KEPT**stage), level) for stage, level in enumerate(levels))


def search_runs(stages: Sequence[Rung]) -> int:
    """Count the runs of a search; a candidate is not run again on instances it was tried on before."""
    before = [0, *(stage.instances for stage in stages[:-1])]
    return sum(stage.candidates * (stage.instances - done) for stage, done in zip(stages, before, strict=True))


class FamilySearch:
    """A search ready to run, with its cost known beforehand.

    Attributes:
        runs, rounds: what it will take.
    """

    def __init__(
        self, spec: ControllerSpec, setting: Setting, core: EnvCore, environments: Environments, instances: int
    ):
        """Make the candidates.

        Args:
            spec: the family; parameters that it gives are fixed.
            setting: of the training instances, with what the family needs.
            core: an environment that shows and asks the same.
            environments: where those that play come from.
            instances: training instances that the last candidates are tried on.

        Raises:
            InputError: the environment does not fit, or there is nothing to search.
        """
        self._setting, self._core, self._environments, self._instances = setting, core, environments, instances
        view = spec.view(core)
        self._controllers: list[tuple[Candidate, Controller]] = []
        refusal: InputError | None = None
        for values in grid(spec, view):
            try:
                self._controllers.append((values, spec.controller.for_env(view, **values)))
            except InputError as error:  # as a budget schedule that the knob's range cannot hold
                refusal = error
        if refusal is not None and not self._controllers:
            raise refusal
        self._rungs = rungs(len(self._controllers), instances)
        self.runs = search_runs(self._rungs)
        self.rounds = self.runs * setting.federation.rounds

    def plan(self) -> Plan[TunedFamily]:
        """Find the parameters with the highest mean final accuracy."""
        seeds = instance_seeds("train", self._instances)
        scores: list[list[float]] = [[] for _ in self._controllers]
        alive = list(range(len(self._controllers)))
        for rung in self._rungs:
            alive = sorted(alive, key=lambda index: -_mean(scores[index]))[: rung.candidates]
            runs = [(index, seed) for index in alive for seed in seeds[len(scores[index]) : rung.instances]]
            controllers = [self._controllers[index][1] for index, _ in runs]
            finals = yield from play_each(controllers, [seed for _, seed in runs], self._setting, self._environments)
            for (index, _), score in zip(runs, finals, strict=True):
                scores[index].append(score)
        best = max(alive, key=lambda index: _mean(scores[index]))
        count = len(self._controllers)
        values = self._controllers[best][1].values
        each = self._setting.federation.rounds
        played = {seed: each * sum(len(own) > place for own in scores) for place, seed in enumerate(seeds)}
        return TunedFamily(
            values=values,
            score=_mean(scores[best]),
            candidates=count,
            runs=self.runs,
            rounds=self.rounds,
            instances=len(scores[best]),
            population=self._setting.federation.population,
            releases=prior_rounds(self._core, played),
        )


class Described(Policy, Protocol):
    """A policy that can be told from others, as every controller of ours can."""

    @property
    def label(self) -> str:
        """Name of it in figures and tables."""

    def describe(self) -> dict[str, Any]:
        """Return all that its actions depend on, as JSON values."""


def play_each(
    policies: Sequence[Described], seeds: Sequence[int], setting: Setting, environments: Environments
) -> Plan[list[float]]:
    """Measure each policy's final accuracy on the seed at its place, many at a time as rows of one batch.

    A batch is a job.

    Args:
        policies: one per run; equal ones act together.
        seeds: instances, one per run.
        setting: of the environment.
        environments: where it comes from.
    """
    rows = environments.rows_at_once(setting, len(seeds))
    works = []
    for first in range(0, len(seeds), rows):
        part = slice(first, first + rows)
        call = partial(_play_batch, policies[part], seeds[part], setting, environments)
        name = f"search, {len(seeds[part])} runs from {policies[first].label} on"
        works.append(Work(_job(policies[part], seeds[part], setting), call, name))
    played = yield works
    return [float(final) for one in played for final in one["finals"]]


def _job(policies: Sequence[Described], seeds: Sequence[int], setting: Setting) -> Job:
    """Describe a batch of a search as a job, by all that its accuracies depend on."""
    runs = [[policy.describe(), seed] for policy, seed in zip(policies, seeds, strict=True)]
    return Job(
        "search", {"code": code_version(CODE), "setting": setting.as_record(), "runs": runs}, partial(_check, len(runs))
    )


def _check(runs: int, record: Mapping[str, Any], where: str) -> None:
    """Refuse what no batch of a search returned; raises `InputError`."""
    finals = record.get("finals")
    fits = isinstance(finals, list) and len(finals) == runs and all(is_number(x) and 0 <= x <= 1 for x in finals)
    require(fits, f"{where}: finals is {short(finals)}, but it must be {runs} accuracies between 0 and 1.")


def _play_batch(
    policies: Sequence[Described],
    seeds: Sequence[int],
    setting: Setting,
    environments: Environments,
    progress: RowProgress,
) -> dict[str, Any]:
    """Play runs as rows of one batch; returns JSON values."""
    core = environments.of(setting, len(seeds))
    run_to_the_end(core, _ByRow(policies), [RunSettings(seed=seed) for seed in seeds], progress)
    return {"finals": [_finite(core.final_accuracy(row)) for row in range(core.runs)]}


class _ByRow:
    """A policy for each row of a batch."""

    def __init__(self, policies: Sequence[Policy]):
        self._rows: dict[int, list[int]] = {}
        for row, policy in enumerate(policies):
            self._rows.setdefault(id(policy), []).append(row)
        self._policies = {id(policy): policy for policy in policies}

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[NDArray[np.float32], Any]:
        """Let each policy act on its rows, with a state of its own."""
        states, actions = dict(state or {}), {}
        for key, rows in self._rows.items():
            start = None if episode_start is None else episode_start[rows]
            actions[key], states[key] = self._policies[key].predict(observation[rows], states.get(key), start)
        width = next(iter(actions.values())).shape[1]
        whole = np.zeros((len(observation), width), dtype=np.float32)
        for key, rows in self._rows.items():
            whole[rows] = actions[key]
        return whole, states


def _mean(scores: Sequence[float]) -> float:
    return float(np.mean(scores)) if scores else 0.0


def _finite(score: float) -> float:
    """Replace the accuracy of a diverged run, which is not finite, by 0."""
    return score if math.isfinite(score) else 0.0
