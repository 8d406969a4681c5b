"""`dpilot compare`: controllers on the same held-out instances at the same (epsilon, delta)."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console

from envs import make_core
from envs.instances import instance_seeds
from envs.tasks import default_federation
from experiments.contenders import make_contenders
from experiments.episodes import Contender, Settings, play
from experiments.ledger_file import uncovered_releases
from experiments.progress import rounds_bar
from experiments.report import table, write_report
from experiments.results import Comparison, ControllerResult
from experiments.runfolder import make_run_folder, write_yaml
from experiments.tensorboard import RoundWriter
from experiments.verdict import verdict
from fl_core.config import FederationConfig
from fl_core.errors import InputError, require_count

DEFAULT_CONTROLLERS = ("fixed", "best-fixed", "exponential-decay", "server-lr-decay", "aqc")


@dataclass(frozen=True)
class CompareCommand:
    """Controllers on the same held-out instances, at the same epsilon and delta; leaves a report."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    controllers: tuple[str, ...] = DEFAULT_CONTROLLERS
    """Controllers to compare (`dpilot list controllers`); trained ones as ppo:FOLDER, sac:FOLDER, ..."""
    seeds: int = 20
    """Held-out instances that every controller runs on."""
    search_instances: int = 8
    """Training instances on which best-fixed, and what derives from it, is searched."""
    train_on: str = "proxy"
    """Clients whose runs that search takes: proxy, or, at a cost in privacy that no epsilon contains, target or all."""
    runs: Path = Path("runs")
    """Folder that receives the comparison's folder."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    def execute(self) -> None:
        """Compare, write the report, and print the table."""
        require_count("seeds", self.seeds)
        require_count("search_instances", self.search_instances)
        if not self.controllers:
            raise InputError("controllers is empty, but it needs at least one name.")
        settings = {"task": self.task, **asdict(self.federation)}
        contenders = make_contenders(self.controllers, settings, self.search_instances, self.train_on)
        folder = make_run_folder(self.runs, self.task, "compare", self.seeds)
        write_yaml(folder / "config.yaml", {"command": "compare", **asdict(self)})
        comparison = compare(contenders, settings, instance_seeds("test", self.seeds), command_line())
        finish(comparison, folder)


def command_line() -> str:
    """What the user typed, ready to be typed again."""
    return shlex.join(["dpilot", *sys.argv[1:]])


def compare(contenders: Sequence[Contender], settings: Settings, seeds: Sequence[int], command: str) -> Comparison:
    """Play every controller on every seed.

    Args:
        contenders: the controllers.
        settings: the environment, without any controller's view; unless it names a population, target clients.
        seeds: held-out instances, the same for all.
        command: what to type to get this again.
    """
    began = time.monotonic()
    settings = {"instances": "test", **settings}
    core = make_core(1, **{**settings, **contenders[0].view, "reward": "final-accuracy"})
    config = core.federation.config
    results = []
    executor = ""
    for number, contender in enumerate(contenders, start=1):
        title = f"{number}/{len(contenders)} {contender.label}"
        with rounds_bar(config.rounds * len(seeds), title) as progress:
            episodes, executor = play(contender, settings, seeds, progress)
        probe = make_core(1, **{**settings, **contender.view, "reward": "final-accuracy"})
        results.append(
            ControllerResult(
                name=contender.name,
                label=contender.label,
                signals=contender.signals,
                signal_classes=tuple(dict.fromkeys(feature.signal_class for feature in probe.features)),
                training_rounds=contender.training_rounds,
                search_rounds=contender.search_rounds,
                tuned_on=contender.tuned_on,
                tuned_population=contender.tuned_population,
                episodes=tuple(episodes),
            )
        )
    return Comparison(
        task=core.task.name,
        method=config.method,
        dataset=config.dataset,
        clients=config.clients,
        epsilon=config.epsilon,
        delta=config.delta,
        rounds=config.rounds,
        sampling="full" if config.sampling_rate == 1 else config.sampling,
        sampling_rate=config.sampling_rate,
        accountant=core.federation.charging.budgets[0].accountant,
        placement=config.placement,
        device=str(core.federation.device),
        executor=executor,
        wall_seconds=time.monotonic() - began,
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=command,
        controllers=tuple(results),
        judged_by="global_accuracy" if core.judges_server else "personal_accuracy",
        guarantee=config.guarantee,
        uncovered=uncovered_releases(config),
        population=config.population,
    )


def finish(comparison: Comparison, folder: Path) -> None:
    """Write report and TensorBoard events of a comparison, and print its table and verdict."""
    files = write_report(comparison, folder)
    for result in comparison.controllers:
        _write_events(comparison, result, folder / result.label.replace("/", "-"))
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table(comparison))
    console.print(verdict(comparison), highlight=False, soft_wrap=False)
    console.print(f"Report: {files['report.html']}", highlight=False, soft_wrap=True)
    console.print(f"TensorBoard: tensorboard --logdir {folder.parent}", highlight=False, soft_wrap=True)


def _write_events(comparison: Comparison, result: ControllerResult, folder: Path) -> None:
    """A controller's mean trajectory over the seeds, and its line of the HParams page."""
    with RoundWriter(folder) as writer:
        for name in sorted({name for episode in result.episodes for name in episode.trajectory}):
            by_round: dict[int, list[float]] = {}
            for episode in result.episodes:
                for index, value in zip(*episode.series(name), strict=True):
                    by_round.setdefault(int(index), []).append(value)
            for index, values in sorted(by_round.items()):
                writer.round(index, {name: float(np.mean(values))})
        parameters: dict[str, str | float | int | bool] = {
            "task": comparison.task,
            "method": comparison.method,
            "controller": result.name,
            "signals": result.signals,
            "epsilon": comparison.epsilon,
            "rounds": comparison.rounds,
            "clients": comparison.clients,
            "sampling rate": comparison.sampling_rate,
            "population": comparison.population,
            "trained on": result.tuned_population or "nothing",
            "seed": f"mean of {len(result.episodes)}",
        }
        metrics = {
            name: float(np.mean([getattr(episode, name) for episode in result.episodes]))
            for name in ("global_accuracy", "personal_accuracy", "epsilon_spent")
        }
        writer.hparams(parameters, metrics)
