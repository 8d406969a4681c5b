"""The tables of the papers: which runs stand behind each printed number. One YAML file per table, beside this module.

The settings of a cell are merged from four layers: the table's, the block's, the row's and the column's. A later layer
replaces what an earlier one says, except that `set` and `without` add up; a noise multiplier replaces an epsilon too,
and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fl_core.base.errors import InputError, require, require_name
from fl_core.run.budget import restated
from fl_core.run.config import FederationConfig

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Measure:
    """A line of the catalogue of measures, one of which each printed number is.

    Attributes:
        summary: its meaning and unit, for headings.
        read: its value in the record of a cell.
    """

    summary: str
    read: Callable[[Mapping[str, Any]], float]


def _percent(metric: str) -> Callable[[Mapping[str, Any]], float]:
    """Reader of a metric of the last round, in percent; 0 where the run has none."""
    return lambda record: 100 * float(record["figures"].get(metric, 0.0))


MEASURES: dict[str, Measure] = {
    "personal_accuracy": Measure(
        "accuracy of the clients' models in percent, mean over clients", _percent("personal_accuracy")
    ),
    "global_accuracy": Measure("accuracy of the server's model in percent", _percent("global_accuracy")),
    "personal_share": Measure(
        "share of the coordinates that clients kept personal in the last round, in percent", _percent("personal_share")
    ),
    "uplink_saving": Measure(
        "bytes that clients need not upload, of those of the whole model, mean over rounds, in percent",
        lambda record: 100 * (1 - float(record["uplink_bytes"]) / (4 * int(record["parameters"]))),
    ),
    "seconds_per_round": Measure(
        "seconds per round, all clients one after another on one machine",
        lambda record: float(record["seconds_per_round"]),
    ),
}

Layer = Mapping[str, Any]

_OWN = ("clip_norm", "controller")
"""Settings of a layer beside the fields of `FederationConfig`."""
_ADDED = ("set", "without")
_RIVALS = {"epsilon": "noise_multiplier", "noise_multiplier": "epsilon"}
_ALLOWED = frozenset([*_OWN, *(one.name for one in fields(FederationConfig))])


@dataclass(frozen=True)
class Block:
    """A part of a table with rows and columns of its own.

    Attributes:
        name: label.
        measure: what its numbers are, one of `MEASURES`.
        settings: its layer.
        rows, columns: label -> layer.
        printed: row -> the paper's numbers, one per column; None where it prints none.
        substitute: layer on top where another dataset takes the place of the paper's.
    """

    name: str
    measure: str
    settings: Layer
    rows: Mapping[str, Layer]
    columns: Mapping[str, Layer]
    printed: Mapping[str, Sequence[float | None]]
    substitute: Layer = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        """Dataset of the paper's experiment."""
        return str(self.settings["dataset"])

    def layers(self, row: str, column: str) -> tuple[Layer, ...]:
        """Layers that a cell is merged from."""
        return self.settings, self.rows[row], self.columns[column]

    def number(self, row: str, column: str) -> float | None:
        """Printed number at a place; None where the paper prints none."""
        numbers = self.printed.get(row)
        return None if numbers is None else numbers[list(self.columns).index(column)]


@dataclass(frozen=True)
class PaperTable:
    """A table (or figure) of a paper.

    Attributes:
        name: the file's name, as on the command line.
        paper, where, title: whose it is, its number there, and what it shows.
        blocks: by name.
        open: what the paper leaves open and what is taken instead.
        notes: what a reader should know.
    """

    name: str
    paper: str
    where: str
    title: str
    blocks: Mapping[str, Block]
    open: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def merge(*layers: Layer) -> dict[str, Any]:
    """Merge layers, later ones on top; `set` and `without` add up.

    Raises:
        InputError: a layer states its budget twice.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        restated(layer)
        for key, value in layer.items():
            merged.pop(_RIVALS.get(key, ""), None)
            if key in _ADDED:
                merged[key] = ",".join(edits for edits in (merged.get(key), value) if edits)
            else:
                merged[key] = value
    return merged


def table_names() -> list[str]:
    """List the names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@lru_cache(maxsize=64)
def find_table(name: str) -> PaperTable:
    """Find a table by name.

    Raises:
        InputError: there is none.
    """
    require_name("table", name, table_names())
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    try:
        return _table(name, content)
    except KeyError as error:
        raise InputError(f"The table '{name}' lacks {error}.") from error


def _table(name: str, content: Mapping[str, Any]) -> PaperTable:
    blocks = {label: _block(label, block, content) for label, block in content["blocks"].items()}
    known = {"paper", "where", "title", "measure", "settings", "columns", "rows", "blocks", "open", "notes"}
    require(set(content) <= known, f"The table '{name}' has unknown entries: {sorted(set(content) - known)}.")
    return PaperTable(
        name=name,
        paper=content["paper"],
        where=content["where"],
        title=content["title"],
        blocks=blocks,
        open=tuple(content.get("open", ())),
        notes=tuple(content.get("notes", ())),
    )


def _block(label: str, block: Mapping[str, Any], content: Mapping[str, Any]) -> Block:
    """Read a block; entries that it lacks are those of the whole table."""
    rows = {str(row): layer or {} for row, layer in (block.get("rows") or content["rows"]).items()}
    columns = {str(column): layer or {} for column, layer in (block.get("columns") or content["columns"]).items()}
    printed = {str(row): tuple(numbers) for row, numbers in (block.get("printed") or {}).items()}
    settings = merge(content.get("settings", {}), block.get("settings", {}))
    substitute = block.get("substitute", {})
    for layer in (settings, substitute, *rows.values(), *columns.values()):
        for key in layer:
            require_name(f"block '{label}': setting", key, _ALLOWED)
    for row, numbers in printed.items():
        require(row in rows, f"block '{label}' prints numbers for '{row}', which is no row of it.")
        require(len(numbers) == len(columns), f"block '{label}' has {len(numbers)} numbers in row '{row}'.")
    measure = block.get("measure") or content["measure"]
    require_name(f"block '{label}': measure", measure, MEASURES)
    return Block(str(label), measure, settings, rows, columns, printed, substitute)
