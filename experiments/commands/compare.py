"""`dpilot compare`: controllers on the same held-out instances at the same (epsilon, delta)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from envs import EnvSpec, Setting
from envs.instances import INSTANCES, instance_seeds
from envs.tasks import default_federation, find_task
from experiments.commands.consent import require_consent
from experiments.contenders.bench import Bench, Needs
from experiments.contenders.contenders import parse_contender, parse_contenders, prepare
from experiments.contenders.fixed_clip_search import COARSE_VALUES
from experiments.contenders.instances import Case, check_instances, deal, drawn, vary
from experiments.contenders.play import Player, play
from experiments.contenders.progress import rounds_bar
from experiments.records.comparison import Comparison, ControllerResult, Episode, Instance
from experiments.records.folder import make_run_folder, write_yaml
from experiments.records.tensorboard import RoundWriter, hyperparameters
from experiments.reports.comparison import table, write_report
from experiments.reports.verdict import verdict
from experiments.reports.words import targets_text
from experiments.statistics.summary import statistics_record
from experiments.terminal import console
from fl_core.base.errors import InputError, require, require_count
from fl_core.data.populations import POPULATIONS
from fl_core.run.choices import one_of
from fl_core.run.config import FederationConfig

DEFAULT_CONTROLLERS = ("fixed", "best-fixed", "exponential-decay", "server-lr-decay", "aqc")


@dataclass(frozen=True)
class CompareCommand:
    """Controllers on the same held-out instances, at the same epsilon and delta; leaves a report."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    controllers: tuple[str, ...] = DEFAULT_CONTROLLERS
    """Controllers to compare (`dpilot list controllers`); trained ones as ppo:FOLDER, or ppo:FOLDER,FOLDER,... for
    several trainings of one."""
    seeds: int = 20
    """Held-out seeds that every controller runs on, in each instance."""
    first_seed: int = 0
    """Place in the test set of the first of them: other seeds than the usual ones, for a result that does not hang on
    those."""
    vary: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Settings in which instances differ, as epsilon=2,8 partition=iid,shards(1): every combination is one."""
    generator: str = ""
    """Draws instances instead, by name (`dpilot list generators`) or as written, epsilon=3..12,clients=25|50; searches
    run on its training instances."""
    draws: int = 10
    """Instances drawn from the generator's test set."""
    hindsight: bool = False
    """Play a grid of fixed clip norms on the held-out runs too, and report the regret to the best."""
    search_instances: int = 8
    """Training instances on which best-fixed, and what derives from it, is searched."""
    train_on: Annotated[str, one_of(POPULATIONS)] = "proxy"
    """Clients whose runs that search takes: proxy, or, at a cost in privacy that no epsilon contains, target or all."""
    runs: Path = Path("runs")
    """Folder that receives the comparison's folder."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    def execute(self) -> dict[str, Any]:
        """Compare, write the report, print the table and return the statistics."""
        self._check_size()
        if not self.controllers:
            raise InputError("controllers is empty, but it needs at least one name.")
        self.federation.require_seeded_noise("a comparison")
        setting = Setting(replace(find_task(self.task), federation=self.federation), EnvSpec(instances="test"))
        bench = Bench(setting, self.search_instances, self.train_on, self.generator)
        instances = self.instances()
        contenders = parse_contenders(self.controllers)
        check_instances(instances, contenders[0].core(bench).setting, bench.environments)
        if self.hindsight:
            bench.core(GRID)  # refuses a method without clip norms before any run is played
        players = prepare(contenders, bench)
        folder = make_run_folder(self.runs, self.task, "compare", self.seeds)
        write_yaml(folder / "config.yaml", {"command": "compare", **asdict(self)})
        seeds = instance_seeds("test", self.seeds * max(1, len(instances)), self.first_seed)
        result = compare(players, bench, seeds, command_line(), instances, self.hindsight, bool(self.generator))
        return finish(result, folder)

    def _check_size(self) -> None:
        """Refuse what cannot be played, and what takes very long without consent; searches are not counted."""
        least = {"seeds": self.seeds, "draws": self.draws, "search_instances": self.search_instances}
        for name, value in least.items():
            require_count(name, value)
        many = "seeds" if self.seeds >= self.draws or not self.generator else "draws"
        plays = len(self.controllers) * self.seeds * (self.draws if self.generator else 1)
        rounds, clients = self.federation.rounds, self.federation.clients
        require_consent(self.yes, rounds * plays, many, least[many], clients)
        require_consent(self.yes, rounds * self.search_instances, "search_instances", self.search_instances, clients)
        for name, value in least.items():
            INSTANCES.check(name, value)

    def instances(self) -> tuple[Instance, ...]:
        """Make the instances to compare on; none for the task's own setting.

        Raises:
            InputError: they cannot be read, or are both named and drawn.
        """
        if not self.generator:
            return vary(self.vary, self.federation)
        require(not self.vary, "vary and generator both say what instances differ in; give one of them.")
        return drawn(self.generator, self.draws, self.federation)


def command_line() -> str:
    """Compose the command line that was typed, ready to be typed again."""
    return shlex.join(["dpilot", *sys.argv[1:]])


def compare(
    players: Sequence[Player],
    bench: Bench,
    seeds: Sequence[int],
    command: str,
    instances: Sequence[Instance] = (),
    hindsight: bool = False,
    drawn: bool = False,
) -> Comparison:
    """Play every controller on every seed.

    Args:
        players: the controllers.
        bench: where they were prepared.
        seeds: of held-out runs, the same for all; dealt out to the instances in equal blocks.
        command: what to type to get this again.
        instances: settings to compare in; () for the task's own.
        hindsight: whether fixed clip norms are played on the same runs, for the regret to the best of them.
        drawn: whether the instances were drawn by a generator.
    """
    cases = deal(seeds, instances)
    began = time.monotonic()
    core = bench.environments.of(players[0].setting)
    config = core.federation.config
    runs = len(cases) * sum(len(player.builds) for player in players)
    with rounds_bar(config.rounds * runs, f"{len(players)} controllers") as progress:
        episodes, executor = play(players, cases, bench.environments, progress)
    results = [_result(player, bench, own) for player, own in zip(players, episodes, strict=True)]
    grid = _play_grid(bench, cases) if hindsight else ()
    budget = core.federation.charging.budgets[0]
    return Comparison(
        task=core.task.name,
        method=config.method,
        dataset=", ".join(dict.fromkeys(str(one.changes.get("dataset", config.dataset)) for one in instances))
        or config.dataset,
        clients=config.clients,
        epsilon=config.epsilon,
        delta=config.delta,
        rounds=config.rounds,
        sampling="full" if config.sampling_rate == 1 else config.sampling,
        sampling_rate=config.sampling_rate,
        accountant=budget.accountant,
        placement=config.placement,
        device=str(core.federation.device),
        executor=executor,
        wall_seconds=time.monotonic() - began,
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=command,
        controllers=tuple(results),
        instances=tuple(instances),
        hindsight=grid,
        judged_by="global_accuracy" if core.judges_server else "personal_accuracy",
        guarantee=config.guarantee,
        uncovered=config.uncovered,
        population=config.population,
        drawn=drawn,
        adjacency=config.neighbours,
    )


def _result(player: Player, bench: Bench, episodes: Sequence[Episode]) -> ControllerResult:
    """Make the record of a player's episodes."""
    features = bench.environments.of(player.setting).features
    return ControllerResult(
        name=player.name,
        label=player.label,
        signals=player.signals,
        signal_classes=tuple(dict.fromkeys(feature.signal_class for feature in features)),
        training_rounds=player.training_rounds,
        search_rounds=player.search_rounds,
        tuned_on=player.tuned_on,
        tuned_population=player.tuned_population,
        episodes=tuple(episodes),
        trainings=player.trainings,
        releases=player.releases,
    )


GRID = Needs("clip_norm")
"""Requirements of the fixed clip norms of the hindsight."""


def _play_grid(bench: Bench, cases: Sequence[Case]) -> tuple[ControllerResult, ...]:
    """Play fixed clip norms over the whole range of the knob, on the very runs that controllers are compared on."""
    core = bench.core(GRID)
    values = core.knobs[0].decode(np.linspace(-1, 1, COARSE_VALUES))
    grid = [parse_contender(f"fixed:{float(value):.12g}").prepare(bench) for value in values]
    title = f"hindsight: {len(grid)} fixed clip norms"
    with rounds_bar(core.federation.config.rounds * len(cases) * len(grid), title) as progress:
        episodes, _ = play(grid, cases, bench.environments, progress, every_round=False)
    return tuple(_result(player, bench, own) for player, own in zip(grid, episodes, strict=True))


def finish(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """Write report and TensorBoard events of a comparison, print table and verdict, and return the statistics."""
    files = write_report(comparison, folder)
    for result in comparison.controllers:
        _write_events(comparison, result, folder / result.label.replace("/", "-"))
    shown = console(100)
    shown.print(table(comparison))
    shown.print(verdict(comparison))
    shown.print(f"Epsilon holds for: {comparison.basis}.")
    shown.print(f"Report: {files['report.html']}", soft_wrap=True)
    shown.print(f"TensorBoard: tensorboard --logdir {folder.parent}", soft_wrap=True)
    return {
        "folder": str(folder),
        "verdict": verdict(comparison),
        "epsilon_holds_for": comparison.basis,
        **statistics_record(comparison),
    }


def _write_events(comparison: Comparison, result: ControllerResult, folder: Path) -> None:
    """Write a controller's mean trajectory over the seeds to TensorBoard, and its line of the HParams page."""
    with RoundWriter(folder) as writer:
        for name in sorted({name for episode in result.episodes for name in episode.trajectory}):
            by_round: dict[int, list[float]] = {}
            for episode in result.episodes:
                for index, value in zip(*episode.series(name), strict=True):
                    by_round.setdefault(int(index), []).append(value)
            for index, values in sorted(by_round.items()):
                writer.round(index, {name: float(np.mean(values))})
        targets = set(comparison.targets.values())
        spent = ("epsilon_spent",) if len(targets) == 1 else ()  # different budgets have no mean
        parameters = hyperparameters(
            task=comparison.task,
            method=comparison.method,
            controller=result.name,
            signals=result.signals,
            epsilon=targets.pop() if len(targets) == 1 else targets_text(comparison),
            rounds=comparison.rounds,
            clients=comparison.clients,
            sampling_rate=comparison.sampling_rate,
            population=comparison.population,
            trained_on=result.tuned_population,
            seed=f"mean of {len(result.episodes)}",
        )
        metrics = {
            name: float(np.mean([getattr(episode, name) for episode in result.episodes]))
            for name in ("global_accuracy", "personal_accuracy", *spent)
        }
        writer.hparams(parameters, metrics)
