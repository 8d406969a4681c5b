"""`dpilot compare`: controllers on the same held-out instances at the same (epsilon, delta)."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from envs import EnvSpec, Setting
from envs.instances import LARGEST_SET, instance_seeds
from envs.tasks import find_task
from experiments.commands.interruptions import counted, resumable
from experiments.contenders.bench import Bench
from experiments.contenders.comparing import GRID, compare
from experiments.contenders.contenders import Contender
from experiments.contenders.instances import check_instances, drawn, vary
from experiments.contenders.play import CODE
from experiments.contenders.preparing import check, parse_contenders, prepare
from experiments.contenders.recorded import import_recorded
from experiments.options.compare import CompareOptions
from experiments.records.comparison import Comparison, ControllerResult, Instance
from experiments.records.finished import JOBS, FinishedJobs
from experiments.records.folder import make_run_folder, write_yaml
from experiments.records.order import described, option_types, read_order, require_same_order, write_order
from experiments.records.tensorboard import RoundWriter, hyperparameters
from experiments.reports.comparison import table, write_report
from experiments.reports.verdict import verdict
from experiments.reports.words import targets_text
from experiments.statistics.summary import statistics_record
from experiments.terminal import console
from experiments.workers.backends import Backend
from experiments.workers.options import WorkerOptions
from experiments.workers.runner import Runner
from experiments.workers.starting import start_workers
from fl_core.base.code_version import code_version
from fl_core.base.errors import require

REPORTED = "comparison.json"


@dataclass(frozen=True)
class CompareCommand(CompareOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Compare, write the report, print the table and return the statistics."""
        if self.resume is None:
            return self.start(command_line())
        self.check()
        return _go_on(self.resume, self.workers)

    def start(self, typed: str) -> dict[str, Any]:
        """Compare in a new folder and return the statistics; nothing is written if an option is refused.

        Args:
            typed: the command to type to get this again.
        """
        bench, contenders = self._checked()
        with start_workers(self.workers) as backend:
            folder = make_run_folder(self.runs, self.task, "compare", self.seeds)
            write_yaml(folder / "config.yaml", {"command": "compare", **asdict(self)})
            options = {name: getattr(self, name) for name in _OPTIONS}
            settings = Setting(replace(find_task(self.task), federation=self.federation)).as_record()
            write_order(folder, "compare", {**options, "settings": settings, "typed": typed}, _made_of(contenders))
            return self.play(folder, bench, contenders, typed, backend)

    def _checked(self) -> tuple[Bench, list[Contender]]:
        """Make the bench and the contenders, all of it checked.

        Raises:
            InputError: something does not fit.
        """
        self.check()
        contenders = parse_contenders(self.controllers)
        setting = Setting(replace(find_task(self.task), federation=self.federation), EnvSpec(instances="test"))
        bench = Bench(setting, self.search_instances, self.train_on, self.generator)
        instances = self.instances()
        self._seeds(instances)
        check_instances(instances, contenders[0].core(bench).setting, bench.environments)
        if self.hindsight:
            bench.core(GRID)  # refuses a method without clip norms before any run is played
        check(contenders, bench)
        return bench, contenders

    def play(
        self, folder: Path, bench: Bench, contenders: Sequence[Contender], typed: str, backend: Backend | None
    ) -> dict[str, Any]:
        """Tune and play the contenders, what is finished in the folder left out, and report; returns the statistics."""
        finished, instances = FinishedJobs(folder / JOBS), self.instances()
        bench.environments.runner = Runner(finished, backend)
        with resumable("compare", folder, lambda: counted(finished.count, "finished part"), self.workers.typed):
            players = prepare(contenders, bench)
            seeds = self._seeds(instances)
            compared = compare(players, bench, seeds, typed, instances, self.hindsight, bool(self.generator))
            statistics = finish(compared, folder)
            finished.drop()
        return statistics

    def _seeds(self, instances: Sequence[Instance]) -> list[int]:
        """List the held-out seeds, those of each instance after those of the one before; `InputError` for too many."""
        needed = self.seeds * max(1, len(instances))
        require(
            self.first_seed + needed <= LARGEST_SET,
            f"seeds is {self.seeds} and first_seed is {self.first_seed}, so {needed:,} seeds in all, but the test set "
            f"ends at {LARGEST_SET:,}.",
        )
        return instance_seeds("test", needed, self.first_seed)

    def instances(self) -> tuple[Instance, ...]:
        """Make the instances to compare on; none for the task's own setting.

        Raises:
            InputError: they cannot be read, or are both named and drawn.
        """
        if not self.generator:
            return vary(self.vary, self.federation)
        return drawn(self.generator, self.draws, self.federation, self.first_draw)


_OPTIONS = (
    "task",
    "controllers",
    "seeds",
    "first_seed",
    "vary",
    "generator",
    "draws",
    "first_draw",
    "hindsight",
    "search_instances",
    "train_on",
    "yes",
)
"""Options that a comparison's order holds, beside the settings of the federation and the line that was typed."""
_ORDERED = option_types(CompareOptions, _OPTIONS) | {"settings": "dict[str, Any]", "typed": "str"}


def _made_of(contenders: Sequence[Contender]) -> dict[str, Any]:
    """Describe the code and the files that a comparison depends on beside its options."""
    return {"code": code_version(CODE), "controllers": {one.name: one.origin for one in contenders}}


def _go_on(folder: Path, workers: WorkerOptions) -> dict[str, Any]:
    """Compare to the end what was interrupted in a folder, and return the statistics."""
    options, made_of = read_order(folder, "compare", _ORDERED, {"code": "str", "controllers": "dict[str, Any]"})
    if (folder / REPORTED).is_file() and not (folder / JOBS).exists():
        print(f"The comparison in '{folder}' is complete, so nothing was changed. Report: {folder / 'report.html'}")
        return _statistics(Comparison.read(folder / REPORTED), folder)
    with described(folder, "comparison"):
        typed, settings = str(options.pop("typed")), Setting.resumed(options.pop("settings"), folder)
        import_recorded(options["controllers"], made_of["controllers"].values(), folder)
        command = CompareCommand(**options, runs=folder.parent, workers=workers, federation=settings.federation)
        bench, contenders = command._checked()
    require_same_order(folder, "comparison", made_of, _made_of(contenders))
    with start_workers(workers) as backend:
        return command.play(folder, bench, contenders, typed, backend)


def command_line() -> str:
    """Compose the command line that was typed, ready to be typed again."""
    return shlex.join(["dpilot", *sys.argv[1:]])


def finish(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """Write report and TensorBoard events of a comparison, print table and verdict, and return the statistics."""
    files = write_report(comparison, folder)
    for result in comparison.controllers:
        events = folder / result.label.replace("/", "-")
        shutil.rmtree(events, ignore_errors=True)  # of a command that was stopped while it wrote them
        _write_events(comparison, result, events)
    shown = console(100)
    shown.print(table(comparison))
    shown.print(verdict(comparison))
    shown.print(f"Report: {files['report.html']}", soft_wrap=True)
    shown.print(f"TensorBoard: tensorboard --logdir {folder.parent}", soft_wrap=True)
    return _statistics(comparison, folder)


def _statistics(comparison: Comparison, folder: Path) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "verdict": verdict(comparison),
        "epsilon_holds_for": comparison.basis,
        **statistics_record(comparison),
    }


def _write_events(comparison: Comparison, result: ControllerResult, folder: Path) -> None:
    """Write a controller's mean trajectory over the seeds to TensorBoard, and its line of the HParams page."""
    with RoundWriter(folder) as writer:
        writer.basis(comparison.basis)
        writer.average(f"plain means over {len(result.episodes)} runs; the report's tables hold interquartile means")
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
