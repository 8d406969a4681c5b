"""Selection of a part of a paper's table: by blocks, by rows or their methods, and by columns or their settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.papers.tables import Layer, PaperTable, merge
from fl_core.base.errors import require, require_name, unknown_name
from fl_core.run.config import FederationConfig

Place = tuple[str, str, str]
"""Block, row and column of a cell."""


def select_places(
    table: PaperTable, change: Layer, blocks: Sequence[str], methods: Sequence[str], columns: Sequence[str]
) -> list[Place]:
    """Select the places that the user asks for, in the order of the table: column by column.

    Args:
        table: the table.
        change: settings that replace the table's everywhere.
        blocks: names of blocks; all if empty.
        methods: rows by label, or else by the name of their method; all if empty.
        columns: columns by label, or as KEY=VALUE of their settings; all if empty.

    Raises:
        InputError: a name is unknown in this table, or nothing is left.
    """
    for block in blocks:
        require_name("block", block, table.blocks)
    every = [(name, row, column) for name, one in table.blocks.items() for column in one.columns for row in one.rows]
    wanted = {found for method in methods for found in _rows(table, every, change, method)}
    for column in columns:
        if not any(_matches(table, place, column) for place in every):
            labels = {label for block in table.blocks.values() for label in block.columns}
            raise unknown_name(f"cells: column of table '{table.name}'", column, labels)
    chosen = [
        place
        for place in every
        if (not blocks or place[0] in blocks)
        and (not methods or place[1:] in wanted)
        and (not columns or any(_matches(table, place, column) for column in columns))
    ]
    require(bool(chosen), "blocks, methods and cells together match nothing in this table.")
    return chosen


def _rows(table: PaperTable, every: Sequence[Place], change: Layer, name: str) -> set[tuple[str, str]]:
    """Find rows and columns by a name: the row of that label, or else those of that method."""
    found = [place for place in every if place[1].lower() == name.lower()]
    found = found or [place for place in every if _method(table, place, change) == name]
    if not found:
        known = {known for place in every for known in (place[1], _method(table, place, change))}
        raise unknown_name(f"methods: row of table '{table.name}'", name, known)
    return {place[1:] for place in found}


def _method(table: PaperTable, place: Place, change: Layer) -> str:
    block, row, column = place
    return str(merge(*table.blocks[block].layers(row, column), change).get("method", FederationConfig.method))


def _matches(table: PaperTable, place: Place, column: str) -> bool:
    """Tell whether a place's column has that label, with or without its target accuracy, or that setting."""
    block, label = table.blocks[place[0]], place[2]
    labels = [label, label.rpartition(", ")[0]] if label in block.targets else [label]
    if column.lower() in map(str.lower, labels):
        return True
    key, equals, value = column.partition("=")
    layer = block.columns[label]
    return bool(equals) and key.strip() in layer and _same(layer[key.strip()], value)


def _same(value: Any, text: str) -> bool:
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == text.strip()
