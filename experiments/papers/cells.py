"""Cells of a paper's table: the federated runs behind its numbers."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from agents.online_learner import OnlineSettings
from agents.online_spec import NAME as ONLINE
from envs import EnvSpec, Setting
from envs.instances import instance_seeds
from envs.tasks import Task
from experiments.contenders.contenders import Online
from experiments.contenders.preparing import parse_contender
from experiments.papers.cell_checks import check_results
from experiments.papers.federations import OWN_DEFAULTS, SUBSTITUTES, cell_federation, choose_dataset, layers_of
from experiments.papers.tables import Block, Layer, PaperTable, merge
from experiments.records.finished import FinishedJobs, Job
from fl_core.base.code_version import code_version
from fl_core.base.errors import InputError
from fl_core.base.files import spelled_out
from fl_core.models.build import build_model
from fl_core.run.config import FederationConfig
from fl_core.run.plan import CLIP_NORM
from policies.specs import ControllerSpec, parse_controller

NO_NOISE = "no noise"
"""Column of ours for runs that add no noise: they are the same under every guarantee."""
CLIP_SPAN = 8.0
"""Factor by which a controller may go below and above the table's clip norm."""
RECORDING_MODULES = ("experiments.papers.runs", "experiments.records.privacy", "experiments.records.ledger_file")
"""Modules of experiments whose code can change what a cell's record says."""


@dataclass(frozen=True)
class Cell:
    """One federated run behind a number of a table.

    Attributes:
        table, block, row, column: where the number is.
        guarantee: the line of ours that it belongs to: what was asked for, or `NO_NOISE`.
        seed: the run's seed.
        setting: the federation, clip norms, and what the controller sets and sees.
        controller: spec of the controller that sets the knobs.
        code: version of the code that runs it.
        substitute_for: the paper's dataset, where another has taken its place; else "".
    """

    table: str
    block: str
    row: str
    column: str
    guarantee: str
    seed: int
    setting: Setting
    controller: str
    code: str
    substitute_for: str = ""

    @property
    def federation(self) -> FederationConfig:
        """Settings of the federation."""
        return self.setting.federation

    @property
    def clip_norm(self) -> float:
        """Clip norm C, from which a controller starts."""
        return self.setting.task.clip_norm

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the federation, clip norm and controller, as JSON-able values."""
        values = asdict(self.federation) | {"clip_norm": self.clip_norm, "controller": self.controller}
        spelled: dict[str, Any] = spelled_out(values)
        return spelled

    @cached_property
    def asked(self) -> dict[str, Any]:
        """Everything that its result depends on, defaults among it, as JSON-able values.

        The place in the table is not part of it: equal runs of several tables and blocks are one.
        """
        return {
            "code": self.code,
            "seed": self.seed,
            "setting": self.setting.as_record(),
            "controller": spelled_out(controller_record(self.controller)),
        }

    @property
    def stem(self) -> str:
        """Readable beginning of its key."""
        config = self.federation
        words = [config.dataset, config.method, f"epsilon={config.epsilon:g}", config.partition, config.guarantee]
        return "__".join(re.sub(r"[^\w.+=-]+", "-", word).strip("-") for word in (*words, str(self.seed)))

    @cached_property
    def job(self) -> Job:
        """The run as a job, whose record is kept."""
        return Job(self.stem, self.asked, check_results)

    @property
    def key(self) -> str:
        """Name of its files: equal for equal runs of the same code, and different for all others."""
        return self.job.key

    def records(self, folder: Path) -> FinishedJobs:
        """Return the finished cells in the folder of a table."""
        return FinishedJobs(folder / "cells")

    def path(self, folder: Path) -> Path:
        """Path of its record in the folder of a table."""
        return self.records(folder).path(self.job)

    def __str__(self) -> str:
        return f"{self.block}, {self.row}, {self.column}, {self.guarantee}, seed {self.seed}"


def controller_record(spec: str) -> dict[str, Any]:
    """Describe a controller by all its parameters; defaults that a task settles are given in words."""
    contender = parse_contender(spec)
    if isinstance(contender, Online):
        return {"name": ONLINE, **asdict(contender.spec), **asdict(OnlineSettings())}
    first, *others = [_hand_coded_record(one) for one in parse_controller(spec).parts]
    return first | ({"others": others} if others else {})


def _hand_coded_record(spec: ControllerSpec) -> dict[str, Any]:
    usual = {one.name: one.default_text for one in spec.controller.parameters}
    record = {"name": spec.name, "knobs": spec.knobs, "parameters": usual | spec.named_parameters()}
    return record | spec.origins


def make_cells(
    table: PaperTable, guarantees: tuple[str, ...], seeds: int, change: Layer, curves: bool = False
) -> list[Cell]:
    """Make all cells of a table: whole tables first, seed by seed.

    Args:
        table: the table.
        guarantees: what is to be tried.
        seeds: runs per number; they are held-out instances, the same for every row.
        change: settings that replace the table's everywhere.
        curves: whether accuracy is measured after every round, whatever the table says.

    Raises:
        InputError: a setting is not allowed.
    """
    cells = [
        _cell(table, block, (row, column), guarantee, seed, change, curves)
        for seed in instance_seeds("test", seeds)
        for block in table.blocks.values()
        for column in block.columns
        for guarantee in guarantees
        for row in block.rows
    ]
    found: dict[tuple[Any, ...], Cell] = {}
    for one in cells:  # without noise, a run is made once and not under every guarantee
        found.setdefault((one.seed, one.block, one.row, one.column, one.guarantee), one)
    return list(found.values())


def _cell(
    table: PaperTable, block: Block, place: tuple[str, str], guarantee: str, seed: int, change: Layer, curves: bool
) -> Cell:
    dataset = choose_dataset(block.dataset, str(change.get("dataset", "")))
    substitute = dataset != block.dataset
    layers = layers_of(block, *place, dataset)
    if substitute:
        layers.append({"model": fitting_model(str(merge(*layers).get("model", "mlp")), dataset)})
    values = merge(*layers, change)
    own = {name: values.pop(name, default) for name, default in OWN_DEFAULTS.items()}
    federation = cell_federation(table.name, place[0], values, guarantee, change)
    return Cell(
        table=table.name,
        block=block.name,
        row=place[0],
        column=place[1],
        guarantee=guarantee if federation.recipe().private else NO_NOISE,
        seed=seed,
        setting=_setting(
            federation,
            float(own["clip_norm"]),
            _view(str(own["controller"]), guarantee, curves or block.every_round),
        ).holding(parse_contender(str(own["controller"])).needs(guarantee).clip_norms),
        controller=str(own["controller"]),
        code=code_version(*RECORDING_MODULES),
        substitute_for=block.dataset if substitute else "",
    )


def _setting(federation: FederationConfig, clip_norm: float, view: EnvSpec) -> Setting:
    """Make a task of the run's own, under one name for all, so that equal runs of two tables have equal settings."""
    CLIP_NORM.check("clip_norm", clip_norm)
    clip_range = (clip_norm / CLIP_SPAN, clip_norm * CLIP_SPAN)
    return Setting(Task("paper", "a cell of a paper's table", federation, clip_range, clip_norm), view)


def _view(controller: str, guarantee: str, curves: bool) -> EnvSpec:
    """Knobs and signals of a run, as its controller needs them."""
    needs = parse_contender(controller).needs(guarantee)
    return EnvSpec(knobs=needs.knobs, signals=needs.signals, reward="final-accuracy", evaluate_every_round=curves)


@lru_cache(maxsize=64)
def fitting_model(model: str, dataset: str) -> str:
    """Choose the model, or one that takes smaller images where a substitute's are too small for it."""
    for name in (model, "cnn2"):
        try:
            build_model(name, SUBSTITUTES.get(dataset, (3, 32, 32)), 10)
        except InputError:
            continue
        return name
    return "mlp"
