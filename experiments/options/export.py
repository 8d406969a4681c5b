"""The options of `dpilot export`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from fl_core.base.errors import InputError, require, require_name
from fl_core.run.choices import one_of

FORMATS = ("csv", "parquet")
FIGURES = ("svg", "pdf", "png")


@dataclass(frozen=True)
class ExportOptions:
    """Every round of runs and comparisons as one table, their figures, and their tables as LaTeX."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Folders of runs and comparisons, as runs/*; others among them are named and left out."""
    to: Path = Path("export")
    """Folder that receives rounds.csv, and a folder of figures and tables for each run and comparison."""
    format: Annotated[str, one_of(FORMATS)] = "csv"
    """Format of the table of rounds; parquet needs pyarrow, which the extra export brings."""
    figures: tuple[str, ...] = ("svg", "pdf")
    """Formats of the figures, of svg, pdf and png; none where it is empty."""

    def check(self) -> None:
        """Refuse names and numbers that no command of this kind can have.

        Raises:
            InputError: one of them is not allowed.
        """
        require_name("format", self.format, FORMATS)
        for name in self.figures:
            require_name("figures: format", name, FIGURES)
        if self.format == "parquet" and find_spec("pyarrow") is None:
            raise InputError("format is 'parquet', which needs pyarrow: pip install 'dpilot[export]'.")
        require(bool(self.folders), "export needs folders of runs or comparisons: dpilot export runs/*.")
        missing = [folder for folder in self.folders if not folder.is_dir()]
        require(not missing, f"The folder '{(missing or [Path()])[0]}' does not exist.")
