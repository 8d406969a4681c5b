"""The cells of a paper's table: which run each stands for, and the running of one."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agents.online import KNOBS, OnlinePPO, parse_online
from envs import EnvCore, EnvSpec
from envs.instances import instance_seeds
from envs.playing import Policy, RowProgress, decisions
from envs.tasks import Task, find_task
from experiments.contenders.contenders import is_online
from experiments.papers.tables import Block, Layer, PaperTable, merge
from experiments.records.privacy import privacy_report
from experiments.records.tensorboard import RoundWriter, final_metrics, run_parameters
from fl_core.base.errors import InputError
from fl_core.base.files import spelled_out, write_json
from fl_core.data.datasets import dataset_available, dataset_entry
from fl_core.models.model import build_model
from fl_core.run.config import EVALUATIONS, FederationConfig, RunSettings
from policies.catalog import make_controller, parse_controller

HELD_FIXED = "none"
"""The controller of a row that names none: nobody sets anything, so that the clip norm stays the table's."""
SUBSTITUTES = {"fashion-mnist": (1, 28, 28), "mnist5k": (1, 28, 28), "digits": (1, 8, 8)}
"""Datasets that may take the place of one that is not at hand, best first, and the shape of their images."""
CLIP_SPAN = 8.0
"""A controller may choose clip norms from the table's divided by this to the table's times this."""


@dataclass(frozen=True)
class Cell:
    """One federated run behind a number of a table.

    Attributes:
        table, block, row, column: where the number is.
        guarantee: the column of ours that it belongs to.
        seed: the run's seed.
        federation: its settings.
        clip_norm: C, or where a controller starts from.
        controller: who sets the knobs.
        substitute_for: the paper's dataset, where another has taken its place; else "".
    """

    table: str
    block: str
    row: str
    column: str
    guarantee: str
    seed: int
    federation: FederationConfig
    clip_norm: float
    controller: str
    substitute_for: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that its result depends on, as JSON-able values."""
        values = asdict(self.federation) | {"clip_norm": self.clip_norm, "controller": self.controller}
        # Where it runs and where the data lie make no difference beyond rounding.
        for name in ("executor", "memory_limit_mib", "device", "data_root"):
            del values[name]
        spelled: dict[str, Any] = spelled_out(values)
        return spelled

    @property
    def key(self) -> str:
        """Name of its files: equal for equal runs, wherever a table shows them, and different for different ones."""
        usual = asdict(FederationConfig())  # left out, so that a new setting with a default changes no name
        settings = {name: value for name, value in self.settings.items() if value != usual.get(name)}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
        config = self.federation
        words = [config.dataset, config.method, f"epsilon={config.epsilon:g}", config.partition, config.guarantee]
        return "__".join(re.sub(r"[^\w.+=-]+", "-", word).strip("-") for word in (*words, str(self.seed), digest))

    def path(self, folder: Path) -> Path:
        """Its record in a run's folder."""
        return folder / "cells" / f"{self.key}.json"

    def __str__(self) -> str:
        return f"{self.block}, {self.row}, {self.column}, {self.guarantee}, seed {self.seed}"


def make_cells(table: PaperTable, guarantees: tuple[str, ...], seeds: int, change: Layer) -> list[Cell]:
    """All cells of a table: whole tables first, seed by seed.

    Args:
        table: the table.
        guarantees: what is to be tried.
        seeds: runs per number; they are held-out instances, the same for every row.
        change: settings that replace the table's everywhere.

    Raises:
        InputError: a setting is not allowed.
    """
    return [
        _cell(table, block, (row, column), guarantee, seed, change)
        for seed in instance_seeds("test", seeds)
        for block in table.blocks.values()
        for column in block.columns
        for guarantee in guarantees
        for row in block.rows
    ]


def _cell(table: PaperTable, block: Block, place: tuple[str, str], guarantee: str, seed: int, change: Layer) -> Cell:
    dataset = choose_dataset(block.dataset, str(change.get("dataset", "")))
    substitute = dataset != block.dataset
    layers = [*block.layers(*place), {"dataset": dataset}]
    if substitute:
        layers += [block.substitute, {"model": fitting_model(str(merge(*layers).get("model", "mlp")), dataset)}]
    values = merge(*layers, change)
    own = {name: values.pop(name, default) for name, default in _OWN_DEFAULTS.items()}
    return Cell(
        table=table.name,
        block=block.name,
        row=place[0],
        column=place[1],
        guarantee=guarantee,
        seed=seed,
        federation=make_federation(values, guarantee),
        substitute_for=block.dataset if substitute else "",
        clip_norm=float(own["clip_norm"]),
        controller=str(own["controller"]),
    )


_OWN_DEFAULTS = {"clip_norm": 1.0, "controller": HELD_FIXED}


def choose_dataset(wanted: str, forced: str = "") -> str:
    """The dataset to run on: the forced one, the paper's, or the best substitute that is at hand."""
    if forced:
        dataset_entry(forced)
        return forced
    return next(name for name in (wanted, *SUBSTITUTES) if dataset_available(name))


@lru_cache(maxsize=64)
def fitting_model(model: str, dataset: str) -> str:
    """The model, or where a substitute's images are too small for it, one that is not."""
    for name in (model, "cnn2"):
        try:
            build_model(name, SUBSTITUTES.get(dataset, (3, 32, 32)), 10)
        except InputError:
            continue
        return name
    return "mlp"


def make_federation(values: Mapping[str, Any], guarantee: str) -> FederationConfig:
    """The settings of a run. One that adds no noise is the same under every guarantee and at every ε."""
    values = {"population": "all", **values}  # a paper's federation is made of its whole dataset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the papers' delta: it is told once, with the table
        config = find_task("digits", **{**values, "guarantee": "as-published", "epsilon": math.inf}).federation
        if not config.recipe().private:
            return replace(config, guarantee="sound")
        return find_task("digits", **{**values, "guarantee": guarantee}).federation


def run_cell(cell: Cell, folder: Path, curves: bool, progress: RowProgress) -> None:
    """Run it and write its record; nothing of it stays where it is interrupted, except TensorBoard's events.

    Args:
        cell: the run.
        folder: of the whole table.
        curves: whether accuracy is measured after every round.
        progress: told of every round done.
    """
    began = time.monotonic()
    core = cell_core(cell, curves)
    events = folder / "events" / cell.key
    shutil.rmtree(events, ignore_errors=True)
    core.reset([0], [RunSettings(seed=cell.seed)])
    with RoundWriter(events) as writer:
        rounds = _play(core, cell, writer, progress)
        writer.hparams(run_parameters(core, cell.controller, cell.seed, ""), final_metrics(core, 0))
    record = _record(core, cell)
    seconds = {"seconds": round(time.monotonic() - began, 3), "seconds_per_round": round(usual_time(rounds), 4)}
    write_json(cell.path(folder), record | seconds)


def cell_core(cell: Cell, curves: bool = False) -> EnvCore:
    """The environment of a cell: a task of its own, under the knobs and signals that its controller needs."""
    knobs, signals = _needs(cell)
    low, high = cell.clip_norm / CLIP_SPAN, cell.clip_norm * CLIP_SPAN
    task = Task(cell.table, str(cell), cell.federation, (low, high), cell.clip_norm)
    view = EnvSpec(knobs=knobs, signals=signals, reward="final-accuracy", evaluate_every_round=curves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EnvCore(view, task=task)


def _needs(cell: Cell) -> tuple[str, str]:
    """Knobs that its controller sets and the signal set that it sees."""
    if is_online(cell.controller):
        return KNOBS, parse_online(cell.controller).signals_in(cell.guarantee)
    spec = parse_controller(cell.controller)
    return spec.knobs, spec.signals


def _policy(core: EnvCore, cell: Cell) -> Policy:
    """Its controller, which starts from the table's clip norm."""
    if is_online(cell.controller):
        return OnlinePPO.for_env(core, parse_online(cell.controller).seed)
    return make_controller(parse_controller(cell.controller), core, cell.clip_norm)


def _play(core: EnvCore, cell: Cell, writer: RoundWriter, progress: RowProgress) -> list[float]:
    """Let the controller act to the end. Returns the seconds of every round."""
    seconds = []
    policy = _policy(core, cell)
    began = time.monotonic()
    for _ in decisions(core, policy):
        seconds.append(time.monotonic() - began)
        writer.round(len(core.history[0]), core.history[0][-1] if core.history[0] else {})
        progress(1)
        began = time.monotonic()
    return seconds


def usual_time(rounds: Sequence[float]) -> float:
    """Median seconds of a round; the last one, which accuracy is measured after, counts only where it is alone."""
    return float(np.median(rounds[:-1] or rounds))


def _record(core: EnvCore, cell: Cell) -> dict[str, Any]:
    history = core.history[0]
    last = history[-1] if history else {}
    uploaded = [one["uplink_bytes"] for one in history if "uplink_bytes" in one]
    return {
        "seed": cell.seed,
        "settings": cell.settings,
        "rounds": len(history),
        "diverged": not math.isfinite(last.get("server_norm", 0.0)),
        "figures": spelled_out(last),
        "tests": _tests(core, last),
        "uplink_bytes": float(np.mean(uploaded)) if uploaded else 0.0,
        "privacy": privacy_report(core, 0).as_json(),
        "history": spelled_out(history),
        "executor": core.federation.executor.choice,
    }


def _tests(core: EnvCore, last: Mapping[str, float]) -> dict[str, float]:
    """The clients' final accuracy under every test: what papers mean by it is often left open."""
    usual = core.federation.config.evaluation
    measured = {usual: last.get("personal_accuracy", 0.0)}
    for mode in EVALUATIONS:
        if mode != usual:
            measured[mode] = float(core.federation.evaluate(mode)["personal_accuracy"][0])
    return {mode: measured[mode] for mode in EVALUATIONS}
