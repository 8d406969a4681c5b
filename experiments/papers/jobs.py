"""Execution of the missing cells of a table, in this process or in several side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from experiments.papers.cell_records import find_record
from experiments.papers.cells import Cell
from experiments.papers.progress import TableProgress
from experiments.papers.runs import run_cell
from experiments.terminal import shortage
from fl_core.base.errors import InputError
from fl_core.base.handover import Packed, pack_parts, unpack_parts
from fl_core.base.processes import follow_parent, process_context

Finished = Callable[[], object]
"""Callback after every cell."""


def run_cells(cells: Sequence[Cell], folder: Path, jobs: int, finished: Finished) -> None:
    """Run the cells that have no usable record.

    Args:
        cells: those wanted.
        folder: of the table.
        jobs: processes side by side; 1 runs them in this one.
        finished: told after every cell.

    Raises:
        InputError: a cell cannot be run.
    """
    runs = distinct(cells)
    missing = [cell for cell in runs if find_record(cell, folder) is None]
    if not missing:
        return
    done = list(set(runs) - set(missing))
    with TableProgress(missing, done, folder, min(jobs, len(missing))) as progress:
        if jobs == 1:
            _run_here(missing, folder, progress, finished)
        else:
            _Pool(folder, progress, finished).run(missing, jobs)


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Drop cells whose run equals that of an earlier one."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.key, cell)
    return list(found.values())


def _run_here(cells: Sequence[Cell], folder: Path, progress: TableProgress, finished: Finished) -> None:
    for cell in cells:
        progress.started(cell)
        try:
            run_cell(cell, folder, partial(progress.advanced, cell))
        except InputError as error:
            raise _of(cell, error) from error
        progress.finished(cell)
        finished()


class _Pool:
    """Pool of processes with one cell each; one that dies ends the table with an `InputError`."""

    def __init__(self, folder: Path, progress: TableProgress, finished: Finished):
        self._folder, self._progress, self._finished = folder, progress, finished
        self._running: dict[Connection, tuple[BaseProcess, Cell]] = {}

    def run(self, cells: Sequence[Cell], jobs: int) -> None:
        """Run all cells, `jobs` at a time."""
        waiting = list(reversed(cells))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < jobs:
                    self._start(waiting.pop())
                for connection in wait(list(self._running)):
                    assert isinstance(connection, Connection)
                    self._listen(connection)
        finally:
            for process, _ in self._running.values():
                process.terminate()
                process.join()

    def _start(self, cell: Cell) -> None:
        context: Any = process_context(__name__)
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(cell, self._folder, theirs, pack_parts()), daemon=True)
        process.start()
        theirs.close()
        self._running[ours] = process, cell
        self._progress.started(cell)

    def _listen(self, connection: Connection) -> None:
        process, cell = self._running[connection]
        try:
            message = connection.recv()
        except EOFError:
            process.join()
            del self._running[connection]
            if process.exitcode:
                raise InputError(f"The process of cell ({cell}) ended with status {process.exitcode}.") from None
            self._progress.finished(cell)
            self._finished()
            return
        if isinstance(message, Exception):
            raise _of(cell, message)
        self._progress.advanced(cell, message)


def _work(cell: Cell, folder: Path, connection: Connection, parts: Packed) -> None:
    """Run one cell in a process of its own, sending the rounds done, or an error that can be told in a sentence."""
    import torch

    follow_parent()
    torch.set_num_threads(1)
    unpack_parts(parts)
    try:
        run_cell(cell, folder, connection.send)
    except Exception as error:
        if not isinstance(error, (InputError, OSError)) and shortage(error) is None:
            raise
        with suppress(OSError):
            connection.send(error)
        sys.exit(1)


def _of(cell: Cell, error: Exception) -> Exception:
    """Name the cell in an `InputError`, a `FileError` among them; other errors stay as they are."""
    return type(error)(f"Cell ({cell}): {error}") if isinstance(error, InputError) else error
