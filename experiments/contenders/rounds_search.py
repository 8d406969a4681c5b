"""Search for the number of rounds of the best fixed clip norm: T is free to choose, and coupled with the clip norm."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from envs import EnvCore
from envs.acting import Policy
from envs.instances import instance_seeds
from experiments.contenders.bench import Bench, Needs
from experiments.contenders.contenders import Contender, training_instances
from experiments.contenders.play import Player
from experiments.contenders.prior import prior_rounds
from experiments.contenders.search import play_each
from experiments.contenders.specs import TUNED_ROUNDS, Rounds
from experiments.records.costs import PriorRounds
from experiments.workers.runner import Plan
from fl_core.base.errors import require
from policies import FixedClip

CLIP_FACTORS = (0.5**0.5, 1.0, 2.0**0.5)
"""Clip norms tried at each, over C* T*/T: the best clip norm falls about as the number of rounds grows."""
NEEDS = Needs("clip_norm")


@dataclass(frozen=True)
class TunedRounds:
    """The outcome of a search.

    Attributes:
        rounds: number of rounds T with the highest mean final accuracy, each at the best of its clip norms.
        clip_norm: that clip norm.
        score: that accuracy.
        tried: pairs of a number of rounds and a clip norm.
        played: federated rounds that the search ran.
        instances: training instances each pair was tried on.
        population: whose data their clients hold.
        releases: what these rounds released.
    """

    rounds: int
    clip_norm: float
    score: float
    tried: int
    played: int
    instances: int
    population: str
    releases: tuple[PriorRounds, ...]


class RoundsSearch:
    """A search at the same ε for T and a fixed clip norm, which begins with that of the best clip norm at the own T.

    Attributes:
        rounds: federated rounds that it takes.
    """

    def __init__(self, bench: Bench):
        """Prepare the search; nothing is run.

        Raises:
            InputError: the noise multiplier is given, so that ε would follow the rounds, or they cannot be changed.
        """
        own = bench.setting.federation
        require(
            own.noise_multiplier is None,
            f"controller '{TUNED_ROUNDS}' compares numbers of rounds at one epsilon, but noise_multiplier is given.",
        )
        self._bench, self._clips = bench, bench.clip_search
        others = [rounds for rounds in Rounds(None).of(own.rounds) if rounds != own.rounds]
        self._settings = {rounds: bench.searching(NEEDS).replace(rounds=rounds) for rounds in others}
        self._seeds = instance_seeds("train", bench.search_instances)
        self.rounds = self._clips.rounds + len(CLIP_FACTORS) * len(self._seeds) * sum(others)

    def plan(self) -> Plan[TunedRounds]:
        """Search, and return the best pair."""
        clips = yield from self._clips.plan()
        own = self._bench.setting.federation
        scores = {(own.rounds, clip): score for clip, score in clips.scores.items()}
        releases = list(clips.releases)
        for rounds, setting in self._settings.items():
            core = self._bench.environments.of(setting)
            knob = core.knobs[0]
            wanted = [factor * clips.clip_norm * own.rounds / rounds for factor in CLIP_FACTORS]
            tried = [min(max(value, knob.low), knob.high) for value in wanted]
            controllers = [FixedClip.for_env(core, clip_norm=value) for value in tried for _ in self._seeds]
            seeds = list(self._seeds) * len(tried)
            finals = yield from play_each(controllers, seeds, setting, self._bench.environments)
            for place, value in enumerate(tried):
                own_finals = finals[place * len(self._seeds) : (place + 1) * len(self._seeds)]
                scores[rounds, value] = sum(own_finals) / len(own_finals)
            releases += prior_rounds(core, {seed: rounds * len(tried) for seed in self._seeds})
        (rounds, clip_norm), score = max(scores.items(), key=lambda item: item[1])
        return TunedRounds(
            rounds=rounds,
            clip_norm=clip_norm,
            score=score,
            tried=len(scores),
            played=self.rounds,
            instances=len(self._seeds),
            population=clips.population,
            releases=tuple(releases),
        )


@dataclass(frozen=True)
class RoundsContender(Contender):
    """The best fixed clip norm at a number of rounds of its own, both searched on training instances."""

    @property
    @override
    def name(self) -> str:
        return TUNED_ROUNDS

    @property
    @override
    def changes_rounds(self) -> bool:
        return True

    @override
    def needs(self, guarantee: str) -> Needs:
        return NEEDS

    @override
    def policy(self, core: EnvCore, anchor: float | None = None) -> Policy:
        return FixedClip.for_env(core) if anchor is None else FixedClip.for_env(core, clip_norm=anchor)

    @override
    def check(self, bench: Bench) -> None:
        self.core(bench)
        self.search(bench)

    @override
    def search(self, bench: Bench) -> RoundsSearch:
        return bench.kept(self.name, lambda: RoundsSearch(bench))

    @override
    def tuned_population(self, bench: Bench) -> str:
        return bench.train_on

    @override
    def prepare(self, bench: Bench) -> Player:
        found = bench.outcome(self.search(bench))
        return Player(
            name=self.name,
            label=f"fixed {found.clip_norm:.3g} for {found.rounds} rounds",
            setting=bench.acting(NEEDS).replace(rounds=found.rounds),
            builds=(lambda target: self.policy(target, found.clip_norm),),
            search_rounds=found.played,
            tuned_on=(
                f"the best of {found.tried} pairs of clip norm and number of rounds on "
                f"{training_instances(found.instances, found.population)}"
            ),
            tuned_population=found.population,
            releases=found.releases,
        )
