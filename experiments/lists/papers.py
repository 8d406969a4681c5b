"""Lists of the papers' tables, and of what is read off their runs."""

from __future__ import annotations

from experiments.lists.rows import Rows
from experiments.papers.measures import MEASURES
from experiments.papers.tables import find_table, table_names
from fl_core.data.datasets import dataset_available


def papers() -> Rows:
    """List the papers."""
    yield ("table", "paper", "where", "what it shows", "datasets", "here?")
    for table in map(find_table, table_names()):
        datasets = list(dict.fromkeys(block.dataset for block in table.blocks.values()))
        here = all(map(dataset_available, datasets))
        yield (table.name, table.paper, table.where, table.title, ", ".join(datasets), "yes" if here else "no")


def measures() -> Rows:
    """List the measures."""
    yield ("measure", "what it is", "unit", "curve?", "target?")
    for name, one in MEASURES.items():
        yield (name, one.summary, one.unit, "yes" if one.after else "no", "yes" if one.has_target else "no")
