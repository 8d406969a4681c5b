"""Progress of a table's runs and an estimate of the time left, with a cost of its own for each method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typing_extensions import override

from experiments.papers.cell_records import find_record
from experiments.papers.cells import Cell
from experiments.workers.runner import Watch, Work

Finished = Callable[[], object]
"""Callback after every cell."""


class TimeLeft:
    """Estimate of the seconds that cells still take, from the measured seconds of those that are done."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], list[float]] = {}

    def learn(self, cell: Cell, seconds_per_round: float) -> None:
        """Add the measurement of a cell, or of part of one."""
        self._known.setdefault(_kind(cell), []).append(seconds_per_round)

    def seconds(self, cell: Cell) -> float | None:
        """Estimate the seconds of a cell from those of its kind, else from all known ones; None while none is known."""
        known = self._known.get(_kind(cell)) or [one for kind in self._known.values() for one in kind]
        return cell.federation.rounds * sum(known) / len(known) if known else None


def _kind(cell: Cell) -> tuple[str, str, str]:
    return cell.block, cell.row, cell.federation.guarantee


class TableProgress(Watch):
    """Progress bar of cells with the time left, and a line for each finished one, on standard error."""

    def __init__(self, missing: Sequence[Cell], done: Sequence[Cell], folder: Path, jobs: int, finished: Finished):
        """Start at the cells that earlier commands have done.

        Args:
            missing: cells to run.
            done: cells that are finished.
            folder: of the table.
            jobs: cells that run at a time.
            finished: told after every cell.
        """
        super().__init__()
        self._missing, self._folder, self._jobs, self._told = list(missing), folder, jobs, finished
        self._cells = {cell.key: cell for cell in missing}
        self._running: dict[str, tuple[float, int]] = {}
        self._estimate = TimeLeft()
        for cell in done:
            record = find_record(cell, folder)
            if record:
                self._estimate.learn(cell, float(record.get("seconds", 0.0)) / cell.federation.rounds)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True, soft_wrap=True))
        self._task = self._progress.add_task("cells", total=len(missing) + len(done), completed=len(done), left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @override
    def started(self, work: Work) -> None:
        self._running[work.job.key] = time.monotonic(), 0

    @override
    def advanced(self, work: Work, rounds: int) -> None:
        cell = self._cells[work.job.key]
        began, before = self._running[cell.key]
        self._running[cell.key] = began, before + rounds
        words = f"{cell.row}, {cell.column}, round {before + rounds} of {cell.federation.rounds}"
        self._progress.update(self._task, description=words, left=self._left())

    @override
    def finished(self, work: Work) -> None:
        cell = self._cells[work.job.key]
        del self._running[cell.key]
        self._missing.remove(cell)
        record = find_record(cell, self._folder) or {}
        seconds = float(record.get("seconds", 0.0))
        self._estimate.learn(cell, seconds / cell.federation.rounds)
        self._progress.update(self._task, advance=1, left=self._left())
        words = f"{cell}: {_accuracy(record)} after {_time(seconds)}; {self._left() or 'all done'}"
        self._progress.console.print(words, highlight=False, markup=False)
        self._told()

    @override
    def failed(self, work: Work) -> None:
        self._running.pop(work.job.key, None)
        self._missing.remove(self._cells[work.job.key])

    def _left(self) -> str:
        """Time left, in words."""
        total = sum(self._remaining(cell) for cell in self._missing)
        return f"about {_time(total / self._jobs)} left" if total else ""

    def _remaining(self, cell: Cell) -> float:
        """Seconds that an unfinished cell still takes."""
        began, rounds = self._running.get(cell.key, (0.0, 0))
        if not rounds:
            return self._estimate.seconds(cell) or self._guess(cell)
        return (time.monotonic() - began) / rounds * (cell.federation.rounds - rounds)

    def _guess(self, cell: Cell) -> float:
        """Estimate the seconds of a cell from those that run, while none is done."""
        now = time.monotonic()
        known = [(now - began) / rounds for began, rounds in self._running.values() if rounds]
        return cell.federation.rounds * sum(known) / len(known) if known else 0.0


def _accuracy(record: Mapping[str, Any]) -> str:
    figures = record.get("figures", {})
    return f"{100 * float(figures.get('personal_accuracy', 0.0)):.2f} %"


def _time(seconds: float) -> str:
    """Write seconds in the largest unit that fits."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
