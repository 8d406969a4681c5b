"""Controllers that act for another number of rounds than the setting's: T is free to choose, and matters much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from typing_extensions import override

from envs import EnvCore
from envs.acting import Policy
from envs.instances import instance_seeds
from experiments.contenders.bench import Bench, Needs, Search
from experiments.contenders.contenders import Contender, training_instances
from experiments.contenders.play import Player
from experiments.contenders.prior import prior_rounds
from experiments.contenders.search import Described, play_each
from experiments.contenders.specs import AT, Rounds
from experiments.records.costs import PriorRounds
from experiments.workers.runner import Plan
from fl_core.base.errors import require


@dataclass(frozen=True)
class FoundRounds:
    """The outcome of a search.

    Attributes:
        rounds: number of rounds T with the highest mean final accuracy.
        scores: that accuracy, of every number that was tried.
        played: federated rounds that the search ran.
        releases: what these rounds released.
    """

    rounds: int
    scores: dict[int, float]
    played: int
    releases: tuple[PriorRounds, ...]


class OtherRoundsSearch:
    """A search at the same ε for the number of rounds of a controller that needs no search itself, ready to run.

    Attributes:
        rounds: federated rounds that it takes.
    """

    def __init__(self, contender: Contender, bench: Bench, choices: Sequence[int]):
        """Prepare the search; nothing is run.

        Args:
            contender: the controller, each training of which is tried.
            bench: where it is tuned.
            choices: numbers of rounds to try.
        """
        self._contender, self._bench, self._choices = contender, bench, choices
        self._seeds = instance_seeds("train", bench.search_instances)
        self.rounds = sum(choices) * len(self._seeds) * contender.trainings_named

    def plan(self) -> Plan[FoundRounds]:
        """Search, and return the best number."""
        scores: dict[int, float] = {}
        releases: list[PriorRounds] = []
        for rounds in self._choices:
            bench = self._bench.with_rounds(rounds)
            needs = self._contender.needs(bench.setting.federation.guarantee)
            core = bench.search_core(needs)
            trained = [cast(Described, build(core)) for build in self._contender.prepare(bench).builds]
            policies, seeds = [one for one in trained for _ in self._seeds], list(self._seeds) * len(trained)
            finals = yield from play_each(policies, seeds, bench.searching(needs), bench.environments)
            scores[rounds] = sum(finals) / len(finals)
            releases += prior_rounds(core, {seed: rounds * len(trained) for seed in self._seeds})
        return FoundRounds(max(scores, key=scores.__getitem__), scores, self.rounds, tuple(releases))


@dataclass(frozen=True)
class AtRounds(Contender):
    """A controller in a setting with another number of rounds, at the same ε; what it searches, it searches there."""

    inner: Contender
    rounds: Rounds

    @property
    @override
    def name(self) -> str:
        return f"{self.inner.name}{AT}{self.rounds}"

    @property
    @override
    def trainings_named(self) -> int:
        return self.inner.trainings_named

    @property
    @override
    def changes_rounds(self) -> bool:
        return True

    @property
    @override
    def origin(self) -> Any:
        return self.inner.origin

    @override
    def needs(self, guarantee: str) -> Needs:
        return self.inner.needs(guarantee)

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return self.inner.policy(core, anchor)

    @override
    def check(self, bench: Bench) -> None:
        require(
            bench.setting.federation.noise_multiplier is None,
            f"controller '{self.name}' takes other rounds at the same epsilon, but noise_multiplier is given.",
        )
        choices = self._choices(bench)
        for rounds in choices:
            self.inner.check(bench.with_rounds(rounds))
        require(
            len(choices) == 1 or self.inner.search(bench) is None,
            f"controller '{self.name}' needs a search beside that of its rounds; give its parameters.",
        )

    @override
    def search(self, bench: Bench) -> Search[Any] | None:
        choices = self._choices(bench)
        if len(choices) == 1:
            return self.inner.search(bench.with_rounds(choices[0]))
        return bench.kept(self.name, lambda: OtherRoundsSearch(self.inner, bench, choices))

    @override
    def tuned_population(self, bench: Bench) -> str:
        inner = self.inner.tuned_population(bench)
        return inner if len(self._choices(bench)) == 1 else _together(inner, bench.train_on)

    @override
    def prepare(self, bench: Bench) -> Player:
        search = self.search(bench)
        if isinstance(search, OtherRoundsSearch):
            found = bench.outcome(search)
            return self._tuned(self._at(bench, found.rounds), found, bench)
        return self._at(bench, self._choices(bench)[0])

    def _choices(self, bench: Bench) -> tuple[int, ...]:
        return self.rounds.of(bench.setting.federation.rounds)

    def _at(self, bench: Bench, rounds: int) -> Player:
        """Make the player for a number of rounds."""
        player = self.inner.prepare(bench.with_rounds(rounds))
        return replace(player, name=self.name, label=f"{player.label} for {rounds} rounds")

    def _tuned(self, player: Player, found: FoundRounds, bench: Bench) -> Player:
        """Add to a player what the search for its rounds cost."""
        words = (
            f"the best of {len(found.scores)} numbers of rounds on "
            f"{training_instances(bench.search_instances, bench.train_on)}"
        )
        known = player.training_rounds == 0 or bool(player.releases)
        return replace(
            player,
            search_rounds=player.search_rounds + found.played,
            tuned_on="; ".join(filter(None, [player.tuned_on, words])),
            tuned_population=_together(player.tuned_population, bench.train_on),
            releases=(*player.releases, *found.releases) if known else (),
        )


def _together(one: str, other: str) -> str:
    """Name the population that holds the clients of two; "" is nobody's."""
    if not one:
        return other
    return one if one == other else "all"
