"""Tuples that print as a table, for an environment's knobs and signals."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar


class ListingEntry(Protocol):
    """A line of a listing."""

    @property
    @abstractmethod
    def cells(self) -> dict[str, str]:
        """Cell texts by column name."""


T = TypeVar("T", bound=ListingEntry)


class Listing(tuple[T, ...]):
    """A tuple whose `repr` is a table of its entries; equal to a plain tuple of them."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self:
            return "(none)"
        heading = list(self[0].cells)
        return "\n".join(_aligned([heading, *(list(entry.cells.values()) for entry in self)]))

    def _repr_html_(self) -> str:
        """Render the table for notebooks."""
        return f"<pre>{self!r}</pre>"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Join the cells of each row, padded to the width of their column."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
