"""The options of `dpilot paper`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from typing_extensions import override

from experiments.contenders.specs import read_spec
from experiments.options.resuming import Resumable
from experiments.papers.federations import OWN_DEFAULTS, cell_federation, choose_dataset, layers_of
from experiments.papers.selection import Place, select_places
from experiments.papers.tables import PaperTable, find_table, merge
from experiments.workers.options import WorkerOptions
from fl_core.base.errors import require, require_count, require_name
from fl_core.base.values import field_kinds, read_assignment, read_value
from fl_core.data.datasets import dataset_entry
from fl_core.models.catalog import find_model
from fl_core.recipes.recipe import GUARANTEES
from fl_core.run.config import FederationConfig
from fl_core.run.plan import CLIP_NORM


@dataclass(frozen=True)
class PaperOptions(Resumable):
    """A table of a paper beside our numbers. Finished cells are kept: the same command again, or --resume, goes on."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """The table (`dpilot list papers`); without it, all are listed."""
    blocks: tuple[str, ...] = ()
    """Blocks of the table to run, by name; all if left out."""
    methods: tuple[str, ...] = ()
    """Rows to run, by label or by the method's name in `dpilot list methods`; all if left out."""
    cells: tuple[str, ...] = ()
    """Columns to run, by label or as KEY=VALUE of their settings, such as epsilon=2; all if left out."""
    seeds: int = 1
    """Runs per number, on held-out instances that are the same for every row."""
    guarantees: tuple[str, ...] = ("sound", "as-published")
    """Meanings of epsilon to run under: sound, as-published or both."""
    dataset: str = ""
    """Dataset to run on: its blocks alone, or all blocks if the table has none of it; empty takes the table's datasets,
    or one that is at hand in their place."""
    model: str = ""
    """Model to train; empty takes the table's."""
    rounds: int = 0
    """Communication rounds; 0 takes the table's."""
    change: tuple[str, ...] = ()
    """Other settings of the federation as SETTING=VALUE, such as "partition=dirichlet(1)", in place of the table's."""
    measure: str = ""
    """Number to read off the runs in place of the table's (`dpilot list measures`), such as uplink_bytes."""
    target: tuple[float, ...] = ()
    """Accuracies of the clients' models in percent, in place of the table's, for epsilon_to_accuracy and
    rounds_to_accuracy."""
    curves: bool = False
    """Measure accuracy after every round, and draw it over the rounds; by default only at the end."""
    runs: Path = Path("runs")
    """Folder that receives the table's folder."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""
    folder: Path | None = None
    """The table's folder itself: to continue one that was moved, or to add to one."""
    keep_code: tuple[str, ...] = ()
    """Other versions of the code whose finished cells are kept as well, where you know that nothing that has changed
    since can change a result; the results name them."""
    resume: Path | None = None
    """Folder of an interrupted table to continue; every other option is taken from it."""
    workers: tyro.conf.OmitArgPrefixes[WorkerOptions] = field(default_factory=WorkerOptions)
    """Where cells run."""

    @override
    def check_new(self) -> None:
        if not self.name:
            return
        table = find_table(self.name, self.measure, self.target)
        if self.dataset:
            dataset_entry(self.dataset)
        if self.model:
            find_model(self.model)
        self.places(table, self.changed())
        require_count("seeds", self.seeds)
        self.workers.check()
        require_count("rounds", self.rounds, least=0)
        require(bool(self.guarantees), f"guarantees is empty, but it needs one of {', '.join(GUARANTEES)}.")
        for guarantee in self.guarantees:
            require_name("guarantee", guarantee, GUARANTEES)
        self._check_settings(table)

    def _check_settings(self, table: PaperTable) -> None:
        """Refuse changes that the first cell of a row does not allow: they are the same for all columns."""
        change, places = self.changed(), self.places(table, self.changed())
        for name, row, column in {one[:2]: one for one in reversed(places)}.values() if change else ():
            block = table.blocks[name]
            values = merge(*layers_of(block, row, column, choose_dataset(block.dataset, self.dataset)), change)
            own = {key: values.pop(key, usual) for key, usual in OWN_DEFAULTS.items()}
            for guarantee in self.guarantees:
                cell_federation(table.name, row, values, guarantee, change)
            CLIP_NORM.check("clip_norm", own["clip_norm"])
            read_spec(str(own["controller"]))

    @property
    def overview(self) -> str:
        """List that answers in the command's place where no table is named; "" for none."""
        return "" if self.name or self.resume else "papers"

    def places(self, table: PaperTable, change: Mapping[str, Any]) -> list[Place]:
        """Select the places asked for: where no block is named, those of the named dataset, if the table has it."""
        of_dataset = tuple(name for name, block in table.blocks.items() if block.dataset == self.dataset)
        return select_places(table, change, self.blocks or of_dataset, self.methods, self.cells)

    def changed(self) -> dict[str, Any]:
        """Collect the settings that replace the table's everywhere."""
        named = {"dataset": self.dataset, "model": self.model, "rounds": self.rounds}
        change: dict[str, Any] = {name: value for name, value in named.items() if value}
        for one in self.change:
            name, value = _change(one)
            require(name not in change, f"change: {name} is '{value}', but it is set to '{change.get(name)}' already.")
            change[name] = value
        return change


def _change(text: str) -> tuple[str, Any]:
    """Read a setting and its value, as `epsilon=2`."""
    kinds = {**field_kinds(FederationConfig), "clip_norm": float, "controller": str}
    name, value = read_assignment("change", text, "SETTING=VALUE")
    require(name != "guarantee", f"change: guarantee is '{value}', but it has an option of its own, --guarantees.")
    require_name("change: setting", name, kinds)
    return name, read_value(f"change: {name}", value, kinds[name])
