"""What the finished cells of a table come to, beside the printed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.paper_cells import Cell
from experiments.paper_tables import PaperTable
from fl_core.files import read_json


def write_results(table: PaperTable, cells: Sequence[Cell], folder: Path, quiet: bool) -> None:
    """Gather the records and write the tables."""
    for cell in cells:
        if not quiet and not cell.needs and cell.path(folder).exists():
            record = read_json(cell.path(folder))
            print(cell, record["figures"]["personal_accuracy"], record["seconds"])
