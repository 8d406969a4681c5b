"""The tables of the papers: which runs stand behind each printed number. One YAML file per table, beside this module.

The settings of a cell are merged from four layers: the table's, the block's, the row's and the column's. A later layer
replaces what an earlier one says, except that `set` and `without` add up; a noise multiplier replaces an epsilon too,
and the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from experiments.papers.measures import MEASURES, TARGET
from fl_core.base.errors import InputError, require, require_name
from fl_core.run.budget import restated
from fl_core.run.config import FederationConfig

FOLDER = Path(__file__).parent
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, seven times as fast, where PyYAML has it


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
        curves: whether it is about every round, and not the last alone.
        targets: column -> target accuracy in percent, for a measure that has one.
    """

    name: str
    measure: str
    settings: Layer
    rows: Mapping[str, Layer]
    columns: Mapping[str, Layer]
    printed: Mapping[str, Sequence[float | None]]
    substitute: Layer = field(default_factory=dict)
    curves: bool = False
    targets: Mapping[str, float] = field(default_factory=dict)

    @property
    def every_round(self) -> bool:
        """True if accuracy is measured after every round."""
        return self.curves or MEASURES[self.measure].has_target

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
def find_table(name: str, measure: str = "", targets: tuple[float, ...] = ()) -> PaperTable:
    """Find a table by name.

    Args:
        name: the file's.
        measure: one of `MEASURES` in place of the table's; the paper's numbers, of another one, are left out.
        targets: accuracies in percent in place of the table's, for a measure that has one.

    Raises:
        InputError: there is no such table or measure, or the measure and the targets do not fit together.
    """
    require_name("table", name, table_names())
    if measure:
        require_name("measure", measure, MEASURES)
    for target in targets:
        TARGET.check("target", target)
    content = yaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), _LOADER)
    try:
        table = _table(name, content, measure, targets)
    except KeyError as error:
        raise InputError(f"The table '{name}' lacks {error}.") from error
    require(
        not targets or any(block.targets for block in table.blocks.values()),
        f"target is {targets[0] if targets else ''}, but the measure of table '{name}' has none; add --measure "
        f"{' or '.join(key for key, one in MEASURES.items() if one.has_target)}.",
    )
    return table


def _table(name: str, content: Mapping[str, Any], measure: str, targets: tuple[float, ...]) -> PaperTable:
    blocks = {label: _block(label, block, content, measure, targets) for label, block in content["blocks"].items()}
    known = {"paper", "where", "title", "measure", "curves", "targets", "settings", "columns", "rows", "blocks", "open"}
    known |= {"notes"}
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


def _block(
    label: str, block: Mapping[str, Any], content: Mapping[str, Any], measure: str, targets: tuple[float, ...]
) -> Block:
    """Read a block; entries that it lacks are those of the whole table."""
    whole = {**content, **{name: value for name, value in block.items() if value is not None}}
    rows = {str(row): layer or {} for row, layer in whole["rows"].items()}
    columns: dict[str, Layer] = {str(column): layer or {} for column, layer in whole["columns"].items()}
    settings = merge(content.get("settings", {}), block.get("settings", {}))
    substitute = block.get("substitute", {})
    for layer in (settings, substitute, *rows.values(), *columns.values()):
        for key in layer:
            require_name(f"block '{label}': setting", key, _ALLOWED)
    require_name(f"block '{label}': measure", whole["measure"], MEASURES)
    measure = measure or whole["measure"]
    aims: dict[str, float] = {}
    if MEASURES[measure].has_target:
        columns, aims = _aimed(columns, targets or tuple(whole.get("targets", ())), measure)
    own = measure == whole["measure"] and not targets
    printed = {str(row): tuple(numbers) for row, numbers in (block.get("printed") or {}).items() if own}
    for row, numbers in printed.items():
        require(row in rows, f"block '{label}' prints numbers for '{row}', which is no row of it.")
        require(len(numbers) == len(columns), f"block '{label}' has {len(numbers)} numbers in row '{row}'.")
    return Block(
        name=str(label),
        measure=measure,
        settings=settings,
        rows=rows,
        columns=columns,
        printed=printed,
        substitute=substitute,
        curves=bool(whole.get("curves")),
        targets=aims,
    )


def _aimed(
    columns: Mapping[str, Layer], targets: tuple[float, ...], measure: str
) -> tuple[dict[str, Layer], dict[str, float]]:
    """Make a column of each target accuracy in each column; returns them, and the target of each."""
    require(bool(targets), f"measure is '{measure}', which needs an accuracy in percent to be reached; add --target.")
    places = {f"{column}, {target:g} %": (layer, target) for column, layer in columns.items() for target in targets}
    return {name: layer for name, (layer, _) in places.items()}, {name: aim for name, (_, aim) in places.items()}
