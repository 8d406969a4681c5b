"""`dpilot list`: the entries of every catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from experiments.lists.rows import Rows
from experiments.loading import uncollected
from experiments.reports.tables import Table
from experiments.terminal import console
from fl_core.base.errors import require_name
from fl_core.base.placed import Placed

LISTS = {
    "tasks": Placed("experiments.lists.environments:tasks"),
    "methods": Placed("experiments.lists.federation:methods"),
    "controllers": Placed("experiments.lists.controllers:controllers"),
    "algorithms": Placed("experiments.lists.controllers:algorithms"),
    "curricula": Placed("experiments.lists.controllers:curricula"),
    "loggers": Placed("experiments.lists.controllers:loggers"),
    "datasets": Placed("experiments.lists.federation:datasets"),
    "models": Placed("experiments.lists.federation:models"),
    "partitions": Placed("experiments.lists.federation:partitions"),
    "augmentations": Placed("experiments.lists.federation:augmentations"),
    "knobs": Placed("experiments.lists.environments:knobs"),
    "signals": Placed("experiments.lists.environments:signals"),
    "rewards": Placed("experiments.lists.environments:rewards"),
    "generators": Placed("experiments.lists.environments:generators"),
    "papers": Placed("experiments.lists.papers:papers"),
    "measures": Placed("experiments.lists.papers:measures"),
    "accountants": Placed("experiments.lists.federation:accountants"),
    "adjacencies": Placed("experiments.lists.federation:adjacencies"),
    "choices": Placed("experiments.lists.federation:choices"),
}
"""List -> its rows, whose module is imported when they are asked for."""


def _lists() -> Rows:
    yield ("dpilot list", "what there is")
    for name, rows in LISTS.items():
        _, *entries = rows()
        yield (name, ", ".join(dict.fromkeys(entry[0] for entry in entries)))


WHAT_HELP = f"One of: {', '.join(LISTS)}. Without one, the names in each of these lists."


@dataclass(frozen=True)
class ListCommand:
    """The entries of a catalogue, such as tasks, methods or controllers."""

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=WHAT_HELP)] = ""

    def execute(self) -> list[dict[str, str]]:
        """Print the list, and return its entries by the names of the columns."""
        if self.what:
            require_name("list", self.what, LISTS)
        with uncollected():
            heading, *entries = LISTS[self.what]() if self.what else _lists()
        print_list((heading, *entries))
        return [dict(zip(heading, entry, strict=True)) for entry in entries]


def print_list(rows: Rows) -> None:
    """Print a table of texts; the first of the rows is its heading."""
    heading, *entries = rows
    table = Table(heading, tuple(entries), words=heading)
    console(120).print(table.terminal())
