"""Play of whole episodes of a controller, many seeds at a time as rows of one batch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from envs import EnvCore, Setting
from envs.acting import Policy
from envs.playing import RowProgress, run_to_the_end
from experiments.contenders.environments import Environments
from experiments.contenders.instances import Case, batches
from experiments.records.comparison import EVALUATED, Episode
from experiments.records.costs import PriorRounds
from experiments.records.finished import Job
from experiments.workers.runner import Watch, Work
from fl_core.base.code_version import code_version
from fl_core.base.errors import require
from fl_core.base.fields import items
from fl_core.base.text import short
from fl_core.data.populations import share_samples

CODE = "experiments.contenders"
"""Package whose code can change what a contender is tuned to and what its episodes say."""
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
class Player:
    """A contender that has been prepared and can play.

    Attributes:
        name: its spec, as a user would type it.
        label: how figures and tables call it.
        setting: in which it acts, with the knobs and signals that it needs.
        builds: makes the policy for an environment; one for each training.
        training_rounds, search_rounds: federated rounds it cost to train or tune it; None where that is unknown.
        tuned_on: which instances that took, in words.
        tuned_population: whose data their clients hold; "" where there were none.
        trainings: names of the trainings that made it; () for a controller that is not trained.
        reads: features that it depends on.
        releases: what the rounds that trained and tuned it released; () where that is not known.
        origins: where it comes from if it is not built in, by name.
    """

    name: str
    label: str
    setting: Setting
    builds: tuple[Callable[[EnvCore], Policy], ...]
    training_rounds: int | None = 0
    search_rounds: int = 0
    tuned_on: str = ""
    tuned_population: str = ""
    trainings: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    releases: tuple[PriorRounds, ...] = ()
    origins: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def signals(self) -> str:
        """Signal set that it is shown."""
        return self.setting.spec.signals

    def tuned_on_clients_of(self, population: str) -> bool:
        """Return True if it was trained or tuned on samples of a population's clients."""
        return bool(self.tuned_population) and share_samples(self.tuned_population, population)

    def tuning(self, population: str) -> str:
        """Describe its training and tuning, and which of it the ε of a population's clients leaves out; "" for none."""
        if not self.tuned_population:
            return ""
        rounds = (
            "an unknown number of" if self.training_rounds is None else f"{self.training_rounds + self.search_rounds:,}"
        )
        words = f"{self.tuned_on}: {rounds} rounds"
        if self.tuned_on_clients_of(population):
            words += f"; epsilon leaves out what they told about the {population} clients of this run"
        return words


def play(
    players: Sequence[Player],
    cases: Sequence[Case],
    environments: Environments,
    watch: Watch | RowProgress,
    every_round: bool = True,
) -> tuple[list[list[Episode]], str]:
    """Play one episode of each training of every player for every case, those of one setting after each other.

    What a policy plays in one environment is a job; the runner of the environments does it and keeps its results.

    Args:
        players: who plays.
        cases: held-out runs.
        environments: where those that are played in come from.
        watch: told of every round done, or of jobs too.
        every_round: whether to evaluate after every round and to record trajectories.

    Returns:
        The episodes of each player, and how the executor ran the last of them.
    """
    works: list[Work] = []
    takers: list[tuple[list[Episode], int]] = []
    episodes: list[list[Episode]] = [[] for _ in players]
    settings = dict.fromkeys(player.setting for player in players)
    for setting, (shared, group) in itertools.product(settings, batches(cases)):
        whole = setting.replace(evaluate_every_round=every_round, **shared)
        for player, own in zip(players, episodes, strict=True):
            for training, build in enumerate(player.builds if player.setting == setting else ()):
                job = _job(player, build(environments.of(setting)), whole, group)
                call = partial(_play_batches, build, whole, group, environments)
                works.append(Work(job, call, _name(player, training, shared)))
                takers.append((own, training))
    executor = ""
    for (own, training), played in zip(takers, environments.runner.run(works, watch), strict=True):
        episodes_of = items(played["episodes"], "episodes", Episode.from_json)
        own += [replace(one, training=training) for one in episodes_of]
        executor = str(played["executor"])
    if not every_round:
        episodes = [[replace(one, trajectory={}) for one in own] for own in episodes]
    return episodes, executor


def _name(player: Player, training: int, shared: Mapping[str, Any]) -> str:
    """Name what a policy plays, for messages."""
    name = player.trainings[training] if len(player.builds) > 1 else ""
    return ", ".join([player.name, *([name] if name else []), *(f"{key} {value}" for key, value in shared.items())])


def _job(player: Player, policy: Policy, setting: Setting, cases: Sequence[Case]) -> Job:
    """Describe the play of a policy as a job, by all that its episodes depend on."""
    asked = {
        "code": code_version(CODE),
        "setting": setting.as_record(),
        "controller": player.name,
        "policy": getattr(policy, "describe", dict)(),
        "cases": [asdict(case) for case in cases],
    }
    return Job(f"play-{re.sub(r'[^a-z0-9]+', '-', player.name.lower())[:40]}", asked, partial(_check, cases))


def _check(cases: Sequence[Case], record: Mapping[str, Any], where: str) -> None:
    """Refuse what no play of these cases returned; raises `InputError`."""
    played = items(record.get("episodes"), f"{where}: episodes", Episode.from_json)
    pairs, asked = [(one.instance, one.seed) for one in played], [(one.instance, one.seed) for one in cases]
    require(pairs == asked, f"{where} holds other episodes than those of the {len(asked)} seeds that were asked for.")
    executor = record.get("executor")
    require(isinstance(executor, str), f"{where}: executor is {short(executor)}, but it must be a text.")


def _play_batches(
    build: Callable[[EnvCore], Policy],
    setting: Setting,
    cases: Sequence[Case],
    environments: Environments,
    progress: RowProgress,
) -> dict[str, Any]:
    """Play one policy on cases that share their environment, as many at a time as memory allows; returns JSON values.

    They are one job, because a policy's memory goes from one batch to the next.
    """
    rows = environments.rows_at_once(setting, len(cases))
    episodes: list[Episode] = []
    state: Any = None
    executor = ""
    for first in range(0, len(cases), rows):
        chunk = cases[first : first + rows]
        core = environments.of(setting, len(chunk))
        state = None if state is None else tuple(part[: len(chunk)] for part in state)
        state = run_to_the_end(core, build(core), [case.run_settings() for case in chunk], progress, state)
        episodes += [replace(episode_of(core, row), instance=case.instance) for row, case in enumerate(chunk)]
        executor = core.federation.executor.choice
    return {"episodes": [episode.to_json() for episode in episodes], "executor": executor}


def episode_of(core: EnvCore, row: int, by_pld: bool = True) -> Episode:
    """Make the record of a run; its ε by PLD is computed only with `by_pld`, and is infinite otherwise."""
    history, last = core.history[row], core.final_figures(row)
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
