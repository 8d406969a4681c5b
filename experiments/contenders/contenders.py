"""Contenders: what a user names after --controllers, read once, checked before any work, then prepared to play."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from agents.algorithms import ALGORITHMS
from agents.exported import EXPORTED
from agents.online import KNOBS, NAME, SEEN, TELEMETRY, OnlinePPO, OnlineSpec, parse_online
from envs import EnvCore
from envs.acting import Policy
from experiments.contenders.bench import Bench, Needs
from experiments.contenders.play import Player
from experiments.contenders.progress import rounds_bar
from experiments.contenders.trainings import Trainings, load_trainings
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.sources import split_spec
from fl_core.data.populations import share_samples
from policies.catalog import CONTROLLERS, ControllerSpec, make_controller, parse_controller

LEARNED = (*ALGORITHMS, *EXPORTED)
"""Algorithms, and formats of imported policies, whose saved controllers are named as `ppo:FOLDER`."""
TUNED = "tuned"
"""Before the name of a family, as `tuned:exponential-decay`."""


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

    @property
    def trainings_named(self) -> int:
        """Number of policies behind the spec: one, or one per training."""
        return 1

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
        return CONTROLLERS.origins_of(self.spec.name)

    @override
    def needs(self, guarantee: str) -> Needs:
        telemetry = self.spec.controller.needed_telemetry
        return Needs(self.spec.knobs, self.spec.signals, telemetry, clip_norms=self.spec.clip_norms)

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return make_controller(self.spec, core, anchor)

    @override
    def check(self, bench: Bench) -> None:
        core = self.core(bench)
        self.policy(core, core.task.clip_norm if self.derives else None)
        if self.derives:
            _ = bench.clip_search

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
            reads=self.spec.controller.needed_features,
            origins=self.origin,
        )
        if tuned is None:
            return player
        return replace(
            player,
            search_rounds=tuned.rounds,
            tuned_on=f"the best of {len(tuned.scores)} clip norms on {_instances(tuned.instances, tuned.population)}",
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
        return CONTROLLERS.origins_of(self.family.name)

    @override
    def needs(self, guarantee: str) -> Needs:
        return HandCoded(self.family).needs(guarantee)

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return HandCoded(self.family).policy(core, anchor)

    @override
    def check(self, bench: Bench) -> None:
        self.core(bench)
        bench.family_search(self.family, self.needs(""))

    @override
    def tuned_population(self, bench: Bench) -> str:
        return bench.train_on

    @override
    def prepare(self, bench: Bench) -> Player:
        search = bench.family_search(self.family, self.needs(""))
        with rounds_bar(search.rounds, f"search for {self.name}") as progress:
            found = search.run(progress)
        core, controller = self.core(bench), self.family.controller
        return Player(
            name=self.name,
            label=f"tuned {controller.for_env(core, **found.values).label}",
            setting=core.setting,
            builds=(lambda target: controller.for_env(target, **found.values),),
            search_rounds=found.rounds,
            tuned_on=(
                f"the best of {found.candidates} parameter settings in {found.runs} runs, by successive halving on "
                f"{_instances(found.instances, found.population)}"
            ),
            tuned_population=found.population,
            reads=controller.needed_features,
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


def parse_contender(spec: str) -> Contender:
    """Read a spec such as `fixed:0.5`, `tuned:exponential-decay`, `online-ppo:3` or `ppo:runs/NAME`.

    Raises:
        InputError: the controller is unknown, or its parameters or folders are wrong.
    """
    name = spec.partition(":")[0].strip()
    if name in LEARNED:
        return Learned(spec, load_trainings(spec))
    readers: dict[str, Callable[[str], Contender]] = {
        NAME: lambda text: Online(parse_online(text)),
        TUNED: lambda text: Tuned(_parse_family(text)),
    }
    if name in readers:
        return readers[name](spec)
    own, _ = CONTROLLERS.split(spec)
    if split_spec(own) is None:
        require_name("controller", own, [*CONTROLLERS.names(), *LEARNED, NAME, TUNED])
    return HandCoded(parse_controller(spec))


def _parse_family(spec: str) -> ControllerSpec:
    """Parse the family of `tuned:FAMILY`; refuse one without parameters to search."""
    family = spec.partition(":")[2]
    require(
        bool(family), f"controller '{spec}' names no family; write {TUNED}:FAMILY, as in {TUNED}:exponential-decay."
    )
    parsed = parse_controller(family)
    if parsed.controller.tuned or parsed.controller.assigns or not parsed.controller.parameters:
        raise InputError(f"controller '{spec}' names '{parsed.name}', which has no parameters to search.")
    return parsed


def parse_contenders(specs: Sequence[str]) -> list[Contender]:
    """Read specs, each of another controller.

    Raises:
        InputError: a spec cannot be read, or two are the same.
    """
    contenders = [parse_contender(spec) for spec in specs]
    names = [one.name for one in contenders]
    for name in names:
        require(names.count(name) == 1, f"controllers names '{name}' twice, but each may be compared only once.")
    return contenders


def check(contenders: Sequence[Contender], bench: Bench) -> None:
    """Check all contenders, before anything is run or written.

    Raises:
        InputError: a contender does not fit the setting.
    """
    for one in contenders:
        one.check(bench)


def prepare(contenders: Sequence[Contender], bench: Bench) -> list[Player]:
    """Make players of contenders that were checked on the bench; searches are run, or found finished."""
    players = _told_apart([one.prepare(bench) for one in contenders])
    _warn_of_shared_clients(players, bench.setting.federation.population)
    return players


def make_players(specs: Sequence[str], bench: Bench) -> list[Player]:
    """Make players of specs as typed.

    Raises:
        InputError: a spec cannot be read, two are the same, or a controller does not fit the setting.
    """
    contenders = parse_contenders(specs)
    check(contenders, bench)
    return prepare(contenders, bench)


def _instances(count: int, population: str) -> str:
    return f"{count} training instance{'s' if count > 1 else ''} of {population} clients"


def _told_apart(players: list[Player]) -> list[Player]:
    """Append the spec to labels that two players share, as trainings of one algorithm with one seed do."""
    labels = [player.label for player in players]
    return [
        replace(one, label=f"{one.label} {one.name.partition(':')[2] or one.name}")
        if labels.count(one.label) > 1
        else one
        for one in players
    ]


def _warn_of_shared_clients(players: Sequence[Player], here: str) -> None:
    """Warn of players that were trained or tuned on the clients that they are about to act on."""
    by_population: dict[str, list[str]] = {}
    for player in players:
        if player.tuned_population and share_samples(player.tuned_population, here):
            by_population.setdefault(player.tuned_population, []).append(player.name)
    for population, names in by_population.items():
        warnings.warn(
            f"{', '.join(names)}: trained or tuned on {population} clients, to act on {here} clients; epsilon does not "
            "contain what that told about them.",
            stacklevel=3,
        )
