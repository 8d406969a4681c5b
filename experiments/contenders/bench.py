"""Bench of a command: one setting, its searches and its environments, on which contenders are checked and prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from envs import EnvCore, Setting
from experiments.contenders.environments import Environments
from experiments.contenders.fixed_clip_search import FixedClipSearch, TunedClip
from experiments.contenders.progress import jobs_bar
from experiments.contenders.search import FamilySearch
from experiments.workers.runner import Plan
from fl_core.base.errors import require_count, require_name
from fl_core.data.populations import POPULATIONS
from fl_core.run.config import FederationConfig
from policies.specs import ControllerSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Search(Protocol[T_co]):
    """A search ready to run.

    Attributes:
        rounds: federated rounds that it takes.
    """

    rounds: int

    def plan(self) -> Plan[T_co]:
        """Search, and return the outcome."""


@dataclass(frozen=True)
class Needs:
    """Requirements of a controller on its environment.

    Attributes:
        knobs: comma-separated knobs that it sets.
        signals: signal set that it sees.
        telemetry: what the rounds must pay for; "" where it reads none of it.
        decision_rounds: communication rounds per decision.
        context: whether it sees in what instances differ.
        clip_norms: that it is made with; the range of the knob is widened where one of them lies outside.
    """

    knobs: str
    signals: str = "public"
    telemetry: str = ""
    decision_rounds: int = 1
    context: str = "hidden"
    clip_norms: tuple[float, ...] = ()

    def met_by(self, setting: Setting) -> Setting:
        """Return the setting with the needs met; telemetry that a user has chosen stays."""
        usual = setting.federation.telemetry == FederationConfig.telemetry
        return setting.holding(self.clip_norms).replace(
            knobs=self.knobs,
            signals=self.signals,
            decision_rounds=self.decision_rounds,
            context=self.context,
            **({"telemetry": self.telemetry} if self.telemetry and usual else {}),
        )


class Bench:
    """A setting in which contenders are to act, and the training instances on which they are tuned first.

    Attributes:
        setting: without any contender's needs; judged by the final accuracy, which is measured after every round.
        search_instances: training instances that a search tries each value on.
        train_on: population of the clients of these instances.
        generator: what these instances differ in besides their seeds; "" for nothing.
        environments: those of the command.
    """

    def __init__(
        self,
        setting: Setting,
        search_instances: int = 8,
        train_on: str = "proxy",
        generator: str = "",
        environments: Environments | None = None,
    ):
        """Take a setting; nothing is made or run yet.

        Raises:
            InputError: the number of instances or the population is not allowed.
        """
        require_name("train_on", train_on, POPULATIONS)
        require_count("search_instances", search_instances)
        self.setting = setting.replace(reward="final-accuracy", evaluate_every_round=True)
        self.search_instances, self.train_on, self.generator = search_instances, train_on, generator
        self.environments = Environments() if environments is None else environments
        self._family_searches: dict[ControllerSpec, FamilySearch] = {}
        self._outcomes: dict[Any, Any] = {}
        self._kept: dict[str, Any] = {}
        self._others: dict[int, Bench] = {}

    def with_rounds(self, rounds: int) -> Bench:
        """Return this bench, or one that differs in the number of rounds only and shares what was searched."""
        if rounds == self.setting.federation.rounds:
            return self
        if rounds not in self._others:
            setting = self.setting.replace(rounds=rounds)
            other = Bench(setting, self.search_instances, self.train_on, self.generator, self.environments)
            other._outcomes = self._outcomes
            self._others[rounds] = other
        return self._others[rounds]

    def acting(self, needs: Needs) -> Setting:
        """Return the setting in which a contender acts."""
        return needs.met_by(self.setting)

    def core(self, needs: Needs) -> EnvCore:
        """Return an environment of one run in which a contender acts.

        Raises:
            InputError: the method lacks a knob, or the setting is not allowed with these signals.
        """
        return self.environments.of(self.acting(needs))

    def searching(self, needs: Needs) -> Setting:
        """Return the setting of the training instances on which a contender is tuned."""
        return self.acting(needs).replace(
            instances="train", population=self.train_on, generator=self.generator, evaluate_every_round=False
        )

    def search_core(self, needs: Needs) -> EnvCore:
        """Return an environment of one run with the knobs, signals and generator of a search.

        Raises:
            InputError: as for `core`, or the generator draws what cannot be.
        """
        return self.environments.of(self.searching(needs)) if self.generator else self.core(needs)

    @cached_property
    def clip_search(self) -> FixedClipSearch:
        """Search for the best fixed clip norm, not yet run; its cost is known."""
        needs = Needs("clip_norm")
        return FixedClipSearch(self.searching(needs), self.search_core(needs), self.environments, self.search_instances)

    def family_search(self, family: ControllerSpec, needs: Needs) -> FamilySearch:
        """Return the search for a family's parameters, not yet run; its cost is known.

        Raises:
            InputError: the family does not fit the task, or nothing of it is left to search.
        """
        if family not in self._family_searches:
            self._family_searches[family] = FamilySearch(
                family, self.searching(needs), self.search_core(needs), self.environments, self.search_instances
            )
        return self._family_searches[family]

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return a contender's search by its name, made at the first call."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found

    def search(self, searches: Iterable[Search[Any]]) -> None:
        """Run searches that have not been run, side by side where there are workers."""
        missing = [one for one in dict.fromkeys(searches) if one not in self._outcomes]
        if not missing:
            return
        what = "search" if len(missing) == 1 else f"{len(missing)} searches"
        with jobs_bar(sum(one.rounds for one in missing), what) as watch:
            found = self.environments.runner.run_plans([one.plan() for one in missing], watch)
        self._outcomes |= dict(zip(missing, found, strict=True))

    def outcome(self, search: Search[T]) -> T:
        """Return the outcome of a search, which runs once, at the first access."""
        self.search([search])
        found: T = self._outcomes[search]
        return found

    @property
    def best_clip(self) -> TunedClip:
        """Best fixed clip norm; its search runs once, at the first access."""
        return self.outcome(self.clip_search)
