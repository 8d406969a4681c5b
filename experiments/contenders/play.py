"""Playing whole episodes of a controller, many seeds at a time as rows of one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envs import EnvCore, Setting, make_core
from envs.playing import Policy, RowProgress, rows_at_once, run_to_the_end
from experiments.contenders.instances import Case, batches
from experiments.records.comparison import EVALUATED, Episode
from experiments.records.costs import PriorRounds
from fl_core.data.populations import share_samples
from fl_core.run.config import RunSettings

Settings = Mapping[str, Any]
"""Keyword arguments of an environment: the task, replaced settings, and what a controller needs to see and set."""

_TRAJECTORIES = (
    "clip_norm",
    "server_learning_rate",
    "noise_multiplier",
    "epsilon_spent",
    "clipped_share",
    "signal_to_noise",
    *EVALUATED,
)


@dataclass(frozen=True)
class Contender:
    """A controller ready to be played.

    Attributes:
        name: its spec, as a user would type it.
        label: how figures and tables call it.
        view: environment settings that it needs (`knobs`, `signals`, `decision_rounds`).
        builds: makes the policy for an environment; one for each training.
        training_rounds, search_rounds: federated rounds it cost to train or tune it.
        tuned_on: which instances that took, in words.
        tuned_population: whose data their clients hold; "" where there were none.
        trainings: names of the trainings that made it; () for a controller that is not trained.
        signals: signal set that it is shown.
        reads: features that it depends on.
        releases: what the rounds that trained and tuned it released; () where that is not known.
    """

    name: str
    label: str
    view: Mapping[str, Any]
    builds: tuple[Callable[[EnvCore], Policy], ...]
    training_rounds: int = 0
    search_rounds: int = 0
    tuned_on: str = ""
    tuned_population: str = ""
    signals: str = field(default="public")
    trainings: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    releases: tuple[PriorRounds, ...] = ()

    def tuning(self, population: str) -> str:
        """What training and tuning it took, and what of that is missing from the ε of clients of a population."""
        if not self.tuned_population:
            return ""
        words = f"{self.tuned_on}: {self.training_rounds + self.search_rounds:,} rounds"
        if share_samples(self.tuned_population, population):
            words += f"; epsilon leaves out what they told about the {population} clients of this run"
        return words


def releases_in(setting: Setting, rounds: Mapping[int, int]) -> tuple[PriorRounds, ...]:
    """What runs in these settings release, each as if it spent its ε evenly.

    Args:
        setting: of the runs; its generator may give every instance an ε of its own.
        rounds: instance -> federated rounds that were run on it.

    Raises:
        InputError: a setting is not allowed, or its dataset is not here.
    """
    core = EnvCore(setting.replace(reward="final-accuracy", executor="sequential", device="cpu"))
    config, recipe = core.federation.config, core.federation.recipe
    by_epsilon: dict[float, int] = {}
    for seed, count in rounds.items():
        own = core.generator.fill(RunSettings(seed=seed)).epsilon
        epsilon = config.epsilon if own is None else own
        by_epsilon[epsilon] = by_epsilon.get(epsilon, 0) + count
    noise = core.federation.noise_at(0)
    return tuple(
        PriorRounds(
            count, config.rounds, epsilon, noise(epsilon) if recipe.exchanges else math.inf, config.accounting_rate
        )
        for epsilon, count in sorted(by_epsilon.items())
        if count
    )


def spread_evenly(rounds: int, seeds: Sequence[int]) -> dict[int, int]:
    """So many rounds over instances that took about the same: instance -> rounds."""
    share, rest = divmod(rounds, len(seeds))
    return {seed: share + (place < rest) for place, seed in enumerate(seeds)}


def play(
    contender: Contender, settings: Settings, cases: Sequence[Case], progress: RowProgress, every_round: bool = True
) -> tuple[list[Episode], str]:
    """One episode of each of a controller's trainings for every case, and how the executor ran them.

    Args:
        contender: the controller.
        settings: the environment, without the controller's own view; unless it names a population, target clients.
        cases: held-out runs.
        progress: told of every round done.
        every_round: whether to evaluate after every round and to record trajectories.
    """
    view = {**contender.view, "reward": "final-accuracy", "evaluate_every_round": every_round}
    episodes: list[Episode] = []
    executor = ""
    for shared, group in batches(cases):
        whole = {"instances": "test", **settings, **shared, **view}
        for training, build in enumerate(contender.builds):
            played, executor = _play_batches(build, whole, group, progress)
            episodes += [replace(one, training=training) for one in played]
    return episodes if every_round else [replace(one, trajectory={}) for one in episodes], executor


def _play_batches(
    build: Callable[[EnvCore], Policy], settings: Settings, cases: Sequence[Case], progress: RowProgress
) -> tuple[list[Episode], str]:
    """One policy on cases that share their environment, as many at a time as memory allows."""
    core = make_core(1, **settings)
    rows = rows_at_once(core, len(cases))
    episodes: list[Episode] = []
    state: Any = None
    for first in range(0, len(cases), rows):
        chunk = cases[first : first + rows]
        if core.runs != len(chunk):
            core = make_core(len(chunk), **settings)
            state = None if state is None else tuple(part[: len(chunk)] for part in state)
        state = run_to_the_end(core, build(core), [case.run_settings() for case in chunk], progress, state)
        episodes += [replace(episode_of(core, row), instance=case.instance) for row, case in enumerate(chunk)]
    return episodes, core.federation.executor.choice


def episode_of(core: EnvCore, row: int, by_pld: bool = True) -> Episode:
    """The record of a run; `by_pld` says whether to work out its ε by PLD, which is infinite otherwise."""
    history = core.history[row]
    last = history[-1] if history else {}
    spent = last.get("epsilon_spent", 0.0)
    ledger = core.federation.ledgers[row]
    return Episode(
        seed=core.federation.settings[row].seed,
        global_accuracy=last.get("global_accuracy", 0.0),
        personal_accuracy=last.get("personal_accuracy", 0.0),
        epsilon_spent=spent,
        epsilon_pld=ledger.epsilon_by("pld") if by_pld and math.isfinite(spent) else math.inf,
        rounds=len(history),
        diverged=core.diverged(row),
        trajectory={
            name: [step[name] for step in history]
            for name in _TRAJECTORIES
            if history and all(name in step for step in history)
        },
    )
