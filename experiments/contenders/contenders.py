"""Contenders: the kinds of what a user names after --controllers; `preparing` reads, checks and prepares them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from agents.online import OnlinePPO
from agents.online_spec import KNOBS, SEEN, TELEMETRY, OnlineSpec
from envs import EnvCore
from envs.acting import Policy
from experiments.contenders.bench import Bench, Needs, Search
from experiments.contenders.play import Player
from experiments.contenders.search import FamilySearch
from experiments.contenders.specs import TUNED
from experiments.contenders.trainings import Trainings
from policies.specs import ControllerSpec, make_controller


class Contender(ABC):
    """A controller as named by a user.

    It is parsed once (`parse_contender`), checked on the bench, and prepared there after all others are checked.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Spec in one spelling: equal for specs that differ only in how their numbers are written."""

    @abstractmethod
    def needs(self, guarantee: str) -> Needs:
        """State the knobs, signals and telemetry that it needs of an environment under a guarantee."""

    @abstractmethod
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        """Build the policy for an environment.

        Args:
            core: the environment, which meets its needs.
            anchor: clip norm from which parameters that were left out derive; None takes the task's default.

        Raises:
            InputError: the environment does not fit.
        """

    @abstractmethod
    def check(self, bench: Bench) -> None:
        """Refuse what does not fit the setting of the bench, before anything is run.

        Raises:
            InputError: the controller or what it needs does not fit the task, or nothing is left to search.
        """

    @abstractmethod
    def prepare(self, bench: Bench) -> Player:
        """Run the search that it needs, if any, and make its player; call `check` on the same bench first."""

    def search(self, bench: Bench) -> Search[Any] | None:
        """Return the search that `prepare` needs, not yet run; None where it needs none."""
        return None

    @property
    def trainings_named(self) -> int:
        """Number of policies behind the spec: one, or one per training."""
        return 1

    @property
    def changes_rounds(self) -> bool:
        """True if it acts for a number of rounds of its own."""
        return False

    @property
    def origin(self) -> Any:
        """Content of the files that it is made of, as JSON values; what its spec alone says is not repeated."""
        return {}

    def tuned_population(self, bench: Bench) -> str:
        """Name the population of the clients that train or tune it on the bench; "" for none."""
        return ""

    def core(self, bench: Bench) -> EnvCore:
        """Return an environment of one run that meets its needs."""
        return bench.core(self.needs(bench.setting.federation.guarantee))


@dataclass(frozen=True)
class HandCoded(Contender):
    """A hand-coded controller; parameters that derive from the best fixed clip norm take it from a search."""

    spec: ControllerSpec

    @property
    @override
    def name(self) -> str:
        return str(self.spec)

    @property
    def derives(self) -> bool:
        """True if a parameter that was left out derives from the best fixed clip norm, which is then searched."""
        return self.spec.anchored and self.spec.name != "fixed"

    @property
    @override
    def origin(self) -> Any:
        return self.spec.origins

    @override
    def needs(self, guarantee: str) -> Needs:
        return Needs(self.spec.knobs, self.spec.signals, self.spec.telemetry, clip_norms=self.spec.clip_norms)

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return make_controller(self.spec, core, anchor)

    @override
    def check(self, bench: Bench) -> None:
        core = self.core(bench)
        self.policy(core, core.task.clip_norm if self.derives else None)
        self.search(bench)

    @override
    def search(self, bench: Bench) -> Search[Any] | None:
        return bench.clip_search if self.derives else None

    @override
    def tuned_population(self, bench: Bench) -> str:
        return bench.train_on if self.derives else ""

    @override
    def prepare(self, bench: Bench) -> Player:
        core = self.core(bench)
        tuned = bench.best_clip if self.derives else None
        anchor = None if tuned is None else tuned.clip_norm
        player = Player(
            name=self.name,
            label=make_controller(self.spec, core, anchor).label,
            setting=core.setting,
            builds=(lambda target: self.policy(target, anchor),),
            reads=self.spec.features,
            origins=self.origin,
        )
        if tuned is None:
            return player
        return replace(
            player,
            search_rounds=tuned.rounds,
            tuned_on=(
                f"the best of {len(tuned.scores)} clip norms on {training_instances(tuned.instances, tuned.population)}"
            ),
            tuned_population=tuned.population,
            releases=tuned.releases,
        )


@dataclass(frozen=True)
class Tuned(Contender):
    """A hand-coded family whose parameters are searched on training instances; those given in the spec stay fixed."""

    family: ControllerSpec

    @property
    @override
    def name(self) -> str:
        return f"{TUNED}:{self.family}"

    @property
    @override
    def origin(self) -> Any:
        return self.family.origins

    @override
    def needs(self, guarantee: str) -> Needs:
        return HandCoded(self.family).needs(guarantee)

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return HandCoded(self.family).policy(core, anchor)

    @override
    def check(self, bench: Bench) -> None:
        self.core(bench)
        self.search(bench)

    @override
    def search(self, bench: Bench) -> FamilySearch:
        return bench.family_search(self.family, self.needs(""))

    @override
    def tuned_population(self, bench: Bench) -> str:
        return bench.train_on

    @override
    def prepare(self, bench: Bench) -> Player:
        found = bench.outcome(self.search(bench))
        core, family = self.core(bench), self.family
        return Player(
            name=self.name,
            label=f"tuned {family.controller.for_env(family.view(core), **found.values).label}",
            setting=core.setting,
            builds=(lambda target: family.controller.for_env(family.view(target), **found.values),),
            search_rounds=found.rounds,
            tuned_on=(
                f"the best of {found.candidates} parameter settings in {found.runs} runs, by successive halving on "
                f"{training_instances(found.instances, found.population)}"
            ),
            tuned_population=found.population,
            reads=family.features,
            releases=found.releases,
            origins=self.origin,
        )


@dataclass(frozen=True)
class Online(Contender):
    """An agent that learns within the run, from telemetry that the run's budget pays for under a sound guarantee."""

    spec: OnlineSpec

    @property
    @override
    def name(self) -> str:
        return str(self.spec)

    @override
    def needs(self, guarantee: str) -> Needs:
        signals = self.spec.signals_in(guarantee)
        return Needs(KNOBS, signals, ",".join(TELEMETRY) if signals == "accounted" else "")

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return OnlinePPO.for_env(core, self.spec.seed)

    @override
    def check(self, bench: Bench) -> None:
        if KNOBS not in {knob.name for knob in bench.setting.federation.recipe().knobs}:
            bench.core(Needs(KNOBS))  # says so; signals that a method cannot pay for would be refused first
        self.policy(self.core(bench))

    @override
    def prepare(self, bench: Bench) -> Player:
        core = self.core(bench)
        return Player(
            name=self.name,
            label=OnlinePPO.for_env(core, self.spec.seed).label,
            setting=core.setting,
            builds=(self.policy,),
            reads=SEEN[core.spec.signals],
        )


@dataclass(frozen=True)
class Learned(Contender):
    """A learned controller: one or several saved trainings of it."""

    spec: str
    trainings: Trainings

    @property
    @override
    def name(self) -> str:
        return self.spec

    @property
    @override
    def trainings_named(self) -> int:
        return len(self.trainings.controllers)

    @property
    @override
    def origin(self) -> Any:
        return [one.describe() for one in self.trainings.controllers]

    @override
    def tuned_population(self, bench: Bench) -> str:
        return self.trainings.first.population

    @override
    def needs(self, guarantee: str) -> Needs:
        return Needs(**self.trainings.first.view)

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return self.trainings.builds[0](core)

    @override
    def check(self, bench: Bench) -> None:
        core = self.core(bench)
        for build in self.trainings.builds:
            build(core)
        for difference in self.trainings.differences(bench.setting.replace(generator=bench.generator)):
            warnings.warn(f"controller '{self.spec}' was trained {difference}.", stacklevel=2)

    @override
    def prepare(self, bench: Bench) -> Player:
        trained = self.trainings
        return Player(
            name=self.spec,
            label=trained.label,
            setting=self.core(bench).setting,
            builds=trained.builds,
            trainings=trained.names,
            training_rounds=trained.rounds,
            tuned_on=trained.words,
            tuned_population=trained.first.population,
            reads=trained.first.blueprint.features,
            releases=trained.releases(bench.environments),
        )


def training_instances(count: int, population: str) -> str:
    """Tell in words on how many training instances, of whose clients, a search was made."""
    return f"{count} training instance{'s' if count > 1 else ''} of {population} clients"
