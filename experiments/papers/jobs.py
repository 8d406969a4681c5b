"""Runs of the missing cells of a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.papers.cell_records import find_record
from experiments.papers.cells import Cell
from experiments.papers.progress import Finished, TableProgress
from experiments.papers.runs import run_cell
from experiments.workers.backends import Backend
from experiments.workers.runner import Runner, Work
from experiments.workers.serving import in_shared_folder


def run_cells(cells: Sequence[Cell], folder: Path, backend: Backend | None, finished: Finished) -> None:
    """Run the cells that have no usable record.

    Args:
        cells: those wanted.
        folder: of the table.
        backend: where they run; None for this process.
        finished: told after every cell.

    Raises:
        JobsFailed: cells cannot be run; all others are done.
    """
    runs = distinct(cells)
    missing = [cell for cell in runs if find_record(cell, folder) is None]
    if not missing:
        return
    done = list(set(runs) - set(missing))
    works = [_work(cell, folder.absolute()) for cell in missing]
    side_by_side = min(backend.cores if backend else 1, len(missing))
    with TableProgress(missing, done, folder, side_by_side, finished) as progress:
        Runner(missing[0].records(folder), backend, alike=False).run(works, progress)  # records name their executors


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Drop cells whose run equals that of an earlier one."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.key, cell)
    return list(found.values())


def _work(cell: Cell, folder: Path) -> Work:
    """Make the job of a cell; its record goes through this process, and its events into the folder."""
    return Work(cell.job, partial(in_shared_folder, folder, partial(run_cell, cell, folder)), f"Cell ({cell})")
