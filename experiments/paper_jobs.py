"""Running the missing cells of a table, here or in processes side by side."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from experiments.paper_cells import Cell, run_cell
from experiments.progress import rounds_bar
from fl_core.errors import InputError

Finished = Callable[[], None]
"""Told after every cell."""


def run_cells(cells: Sequence[Cell], folder: Path, curves: bool, jobs: int, finished: Finished) -> None:
    """Run the cells that have no record yet.

    Args:
        cells: those wanted.
        folder: of the table.
        curves: whether accuracy is measured after every round.
        jobs: processes side by side; 1 runs them in this one.
        finished: told after every cell.

    Raises:
        InputError: a cell cannot be run.
    """
    known = {cell.key: cell for cell in cells if not cell.needs}
    missing = [cell for cell in known.values() if not cell.path(folder).exists()]
    if not missing:
        return
    if jobs == 1:
        with rounds_bar(sum(cell.federation.rounds for cell in missing), "cells") as progress:
            for cell in missing:
                run_cell(cell, folder, curves, progress)
                finished()
    else:
        _Pool(folder, curves, finished).run(missing, min(jobs, len(missing)))


class _Pool:
    """Processes with one cell each. A process that dies ends the whole table with a sentence, not with a hang."""

    def __init__(self, folder: Path, curves: bool, finished: Finished):
        self._folder, self._curves, self._finished = folder, curves, finished
        self._running: dict[Connection, tuple[SpawnProcess, Cell]] = {}

    def run(self, cells: Sequence[Cell], jobs: int) -> None:
        """Run them all, `jobs` at a time."""
        waiting = list(reversed(cells))
        try:
            with rounds_bar(sum(cell.federation.rounds for cell in cells), "cells") as progress:
                while waiting or self._running:
                    while waiting and len(self._running) < jobs:
                        self._start(waiting.pop())
                    for connection in wait(list(self._running)):
                        assert isinstance(connection, Connection)
                        self._listen(connection, progress)
        finally:
            for process, _ in self._running.values():
                process.terminate()
                process.join()

    def _start(self, cell: Cell) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(cell, self._folder, self._curves, theirs), daemon=True)
        process.start()
        theirs.close()
        self._running[ours] = process, cell

    def _listen(self, connection: Connection, progress: Callable[[int], None]) -> None:
        process, cell = self._running[connection]
        try:
            message = connection.recv()
        except EOFError:
            process.join()
            del self._running[connection]
            if process.exitcode:
                raise InputError(f"The process of cell ({cell}) ended with status {process.exitcode}.") from None
            self._finished()
            return
        if isinstance(message, str):
            raise InputError(f"Cell ({cell}): {message}")
        progress(message)


def _work(cell: Cell, folder: Path, curves: bool, connection: Connection) -> None:
    """What a process does: one cell, telling of its rounds, or of what is wrong in one sentence."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's business
    torch.set_num_threads(1)
    try:
        run_cell(cell, folder, curves, connection.send)
    except InputError as error:
        with suppress(OSError):
            connection.send(str(error))
        sys.exit(1)
