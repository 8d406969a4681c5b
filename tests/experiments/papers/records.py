"""Records of cells as a command keeps them, for tests that run none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.papers.cells import Cell


def write_record(cell: Cell, folder: Path, results: Mapping[str, Any]) -> None:
    cell.records(folder).keep(cell.job, {"seed": cell.seed, **results})
