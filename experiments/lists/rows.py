"""Rows of a list: texts by column, the first of them its heading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from fl_core.base.catalogue import Catalogue

Rows = Iterable[tuple[str, ...]]
Part = TypeVar("Part")


def parts_of(catalogue: Catalogue[Part], heading: Sequence[str], cells: Callable[[str, Part], Sequence[str]]) -> Rows:
    """List a catalogue that takes parts of users: `cells` gives a name and what is told of it, origins come last."""
    yield (*heading, "from")
    for one in catalogue.listed():
        if one.part is None:
            yield (one.name, one.broken, *[""] * (len(heading) - 2), one.origin.words)
        else:
            yield (*cells(one.name, one.part), one.origin.words)
