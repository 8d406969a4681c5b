"""`dpilot paper`: a table of a paper, run cell by cell and set beside its printed numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from envs.instances import INSTANCES
from experiments.commands.interruptions import counted, resumable
from experiments.options.consent import require_consent
from experiments.options.paper import PaperOptions
from experiments.papers.cell_records import find_record, kept, unused
from experiments.papers.cells import NO_NOISE, Cell, make_cells
from experiments.papers.jobs import check_cells, distinct, run_cells
from experiments.papers.pictures import FOLDER, draw
from experiments.papers.results import RESULT, BlockResult, gather, table_json, write_data
from experiments.papers.sheets import print_sheets, write_markdown
from experiments.papers.tables import PaperTable, find_table
from experiments.records.folder import require_writable
from experiments.records.order import option_types, read_order, write_order
from experiments.workers.starting import start_workers
from fl_core.base.errors import require
from fl_core.base.files import drop_leftovers
from fl_core.data.datasets import dataset_available
from fl_core.recipes.recipe import GUARANTEES


@dataclass(frozen=True)
class PaperCommand(PaperOptions):
    """The command with its options."""

    def execute(self) -> Any:
        """Run what is missing, write the results, print them and return them."""
        self.check()
        if self.resume is not None:
            return replace(_ordered(self.resume), workers=self.workers).execute()
        table, change = find_table(self.name, self.measure, self.target), self.changed()
        once = distinct(make_cells(table, self.guarantees, 1, change))
        rounds = self.seeds * sum(cell.federation.rounds for cell in once)
        require_consent(self.yes, rounds, "seeds", self.seeds, once[0].federation.clients)
        INSTANCES.check("seeds", self.seeds)
        folder = self.folder or self.runs / self._folder_name()
        require_writable("folder" if self.folder else "runs", folder / RESULT)
        everything = kept(make_cells(table, tuple(GUARANTEES), self.seeds, change, self.curves), folder, self.keep_code)
        wanted = [cell for cell in everything if cell.guarantee in (*self.guarantees, NO_NOISE)]
        places = self.places(table, change)
        chosen = [cell for cell in wanted if (cell.block, cell.row, cell.column) in places]
        check_cells(chosen, folder)
        shown = {cell.block for cell in chosen}
        # With what earlier commands have run; a block that nobody asked for may find runs on its substitute there.
        whole = [cell for cell in everything if cell.block in shown or not cell.substitute_for]
        with start_workers(self.workers) as backend:
            _announce(table, chosen, everything, folder)
            drop_leftovers(folder)
            write_order(folder, "paper", {name: getattr(self, name) for name in _OPTIONS}, {})
            with self._resumable(chosen, folder):
                run_cells(chosen, folder, backend, lambda: _write(table, gather(table, whole, folder), folder, {}))
        with self._resumable(chosen, folder):
            results = gather(table, whole, folder)
            _write(table, results, folder, draw(table, results, folder))
        print_sheets([result for result in results if result.block.name in shown])
        print(
            f"Records: {folder}\nPictures: {folder / FOLDER}\nTo look at it: tensorboard --logdir {folder / 'events'}"
        )
        return {"folder": str(folder), **table_json(table, results)}

    def _resumable(self, cells: Sequence[Cell], folder: Path) -> AbstractContextManager[None]:
        """Say how to go on with these cells, whatever stops them."""
        return resumable(
            "paper", folder, lambda: counted(_finished(cells, folder), "finished cell"), self.workers.typed
        )

    def _folder_name(self) -> str:
        """Name the table's folder, the same for the same settings, so that a command finds it again."""
        words = ["paper", self.name, self.dataset, self.model, f"{self.rounds}-rounds" if self.rounds else ""]
        words += [re.sub(r"[^\w.=-]+", "-", one).strip("-") for one in self.change]
        return "__".join(word for word in words if word)


_OPTIONS = tuple(one.name for one in fields(PaperCommand) if one.name not in ("runs", "folder", "resume", "workers"))
"""Options that the order of a table holds: all but its place and its workers."""


def _ordered(folder: Path) -> PaperCommand:
    """Make the command that a table's folder was last asked for.

    Raises:
        InputError: its order is missing, was changed, or describes no table.
    """
    options, _ = read_order(folder, "paper", option_types(PaperCommand, _OPTIONS), {})
    require(bool(options["name"]), f"The order in '{folder}' names no table; start anew.")
    return PaperCommand(folder=folder, **options)


def _finished(cells: Sequence[Cell], folder: Path) -> int:
    """Count the different runs among cells that are finished."""
    return sum(find_record(cell, folder) is not None for cell in distinct(cells))


def _write(table: PaperTable, results: Sequence[BlockResult], folder: Path, pictures: Mapping[str, str]) -> None:
    """Write result.json, result.csv and result.md of the finished cells; `pictures` are those of the blocks."""
    write_data(table, results, folder)
    write_markdown(table, results, folder, pictures)


def _announce(table: PaperTable, cells: Sequence[Cell], everything: Sequence[Cell], folder: Path) -> None:
    """Print the runs to do, departures from the paper, and finished runs that are not used."""
    print(f"{table.paper}, {table.where}: {table.title}")
    for wanted, (dataset, model) in _substitutes(cells).items():
        why = "is not taken" if dataset_available(wanted) else "is not at hand"
        print(f"dataset '{wanted}' {why}: these are runs on {dataset} with model {model}, no reproduction.")
    runs = distinct(cells)
    missing = [cell for cell in runs if find_record(cell, folder) is None]
    for line in unused(missing, everything, folder):
        print(line)
    print(f"{len(runs)} run{'s' if len(runs) != 1 else ''}, {len(missing)} to do, in {folder}", flush=True)


def _substitutes(cells: Sequence[Cell]) -> Mapping[str, tuple[str, str]]:
    return {
        cell.substitute_for: (cell.federation.dataset, cell.federation.model) for cell in cells if cell.substitute_for
    }
