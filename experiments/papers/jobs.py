"""Runs of the missing cells of a table."""

from __future__ import annotations

import warnings
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
from fl_core.base.errors import InputError
from fl_core.run.simulation import Simulation

_BUDGET = ("epsilon", "noise_multiplier", "delta", "guarantee")
"""Settings that no data or network refuses."""


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


def check_cells(cells: Sequence[Cell], folder: Path) -> None:
    """Check what only data and networks can tell of the cells that have no usable record, before any is run.

    Raises:
        InputError: a cell cannot be run: its dataset is missing, or a setting does not fit it or the network.
    """
    seen = set()
    for cell in distinct(cells):
        apart_from_budget = tuple((name, str(value)) for name, value in cell.settings.items() if name not in _BUDGET)
        if apart_from_budget in seen or find_record(cell, folder) is not None:
            continue
        seen.add(apart_from_budget)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Simulation(cell.federation, 1)
        except InputError as error:
            raise InputError(f"Cell ({cell}): {error}") from error


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Drop cells whose run equals that of an earlier one."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(cell.key, cell)
    return list(found.values())


def _work(cell: Cell, folder: Path) -> Work:
    """Make the job of a cell; its record goes through this process, and its events into the folder."""
    return Work(cell.job, partial(in_shared_folder, folder, partial(run_cell, cell, folder)), f"Cell ({cell})")
