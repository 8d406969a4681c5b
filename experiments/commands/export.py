"""`dpilot export`: rounds, figures and tables of finished work, for other programs and for papers."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.options.export import ExportOptions
from experiments.records.comparison import Comparison
from experiments.records.folder import csv_lines, require_writable
from experiments.records.ledger_file import FILE as LEDGER
from experiments.records.ledger_file import read_record
from experiments.records.rounds import ROUNDS, comparison_rounds, run_rounds
from experiments.reports.comparison import contents
from experiments.reports.drawing import figure_file
from experiments.reports.ledger_figure import ledger_figure
from experiments.reports.pages import CaptionedFigure
from experiments.reports.tables import Table
from fl_core.base.errors import require
from fl_core.base.files import write_bytes, write_text

COMPARISON = "comparison.json"
Drawings = Mapping[str, Callable[[], Figure]]
"""Name of a figure -> what draws it."""


@dataclass(frozen=True)
class ExportCommand(ExportOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Write the files, and return their names."""
        self.check()
        require_writable("to", self.to / f"rounds.{self.format}")
        known = {folder: kind for folder in self.folders if (kind := kind_of(folder))}
        left_out = [folder for folder in self.folders if folder not in known]
        named = " or ".join(f"'{folder}'" for folder in self.folders)
        require(bool(known), f"There are no rounds of a run ({ROUNDS}) nor a comparison ({COMPARISON}) in {named}.")
        labels = _labels(known)
        rows: list[Mapping[str, Any]] = []
        pages: dict[Path, tuple[Drawings, list[Table]]] = {}
        for folder, kind in known.items():  # all are read before anything is written
            comparison = Comparison.read(folder / COMPARISON) if kind == "comparison" else None
            rounds = run_rounds(folder) if comparison is None else comparison_rounds(comparison)
            rows.extend({"folder": labels[folder], **row} for row in rounds)
            drawn = _run_pages(folder, bool(self.figures)) if comparison is None else _comparison_pages(comparison)
            pages[self.to / labels[folder]] = drawn
        written = [path for target, drawn in pages.items() for path in self._illustrate(target, *drawn)]
        written.insert(0, self._write_rounds(rows))
        print(f"{len(rows):,} rounds of {len(known)} folders: {written[0]}")
        if len(written) > 1:
            print(f"{len(written) - 1} figures and tables: {self.to}")
        if left_out:
            print(f"Left out, as neither run nor comparison: {', '.join(map(str, left_out))}")
        return {
            "rounds": len(rows),
            "files": [str(path) for path in written],
            "left_out": [str(one) for one in left_out],
        }

    def _write_rounds(self, rows: list[Mapping[str, Any]]) -> Path:
        """Write the table of rounds: one line for each round of each run, one column for each setting and metric."""
        path = self.to / f"rounds.{self.format}"
        if self.format == "csv":
            write_text(path, csv_lines(rows))
        else:
            content = io.BytesIO()
            pd.DataFrame(rows).to_parquet(content, index=False)
            write_bytes(path, content.getvalue())
        return path

    def _illustrate(self, target: Path, drawn: Drawings, tables: list[Table]) -> Iterator[Path]:
        """Write figures and tables of one run or comparison."""
        for name, draw in drawn.items() if self.figures else ():
            figure = draw()
            for form in self.figures:
                path = target / f"{name}.{form}"
                write_bytes(path, figure_file(figure, form))
                yield path
        if tables:
            path = target / "tables.tex"
            write_text(path, "\n\n".join(table.latex() for table in tables) + "\n")
            yield path


def _labels(folders: Iterable[Path]) -> dict[Path, str]:
    """Name each folder as none before it; those of one name are numbered from the second on.

    Raises:
        InputError: a folder is given twice.
    """
    labels: dict[Path, str] = {}
    places: set[Path] = set()
    for folder in folders:
        place = folder.resolve()
        require(place not in places, f"'{folder}' is named twice.")
        places.add(place)
        names = itertools.chain([place.name], (f"{place.name}-{number}" for number in itertools.count(2)))
        labels[folder] = next(name for name in names if name not in labels.values())
    return labels


def _run_pages(folder: Path, drawn: bool) -> tuple[Drawings, list[Table]]:
    """Collect the figure of a run's ledger, if it is to be drawn and has charges."""
    if not drawn or not (folder / LEDGER).exists():
        return {}, []
    record = read_record(folder)
    return ({"ledger": partial(ledger_figure, record)} if record.ledger.charges else {}), []


def _comparison_pages(comparison: Comparison) -> tuple[Drawings, list[Table]]:
    """Collect the figures and tables of a comparison's report."""
    blocks = [block for section in contents(comparison) for block in section.blocks]
    captioned = [block for block in blocks if isinstance(block, CaptionedFigure)]
    drawn = {one.draw.__name__.removesuffix("_figure"): partial(one.draw, comparison) for one in captioned}
    return drawn, [block for block in blocks if isinstance(block, Table)]


def kind_of(folder: Path) -> str:
    """Tell what a folder holds: "comparison", "run" or, for anything else, ""."""
    return "comparison" if (folder / COMPARISON).exists() else "run" if (folder / ROUNDS).exists() else ""
