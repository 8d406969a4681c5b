"""Run of a cell of a paper's table, and the results in its record."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs import EnvCore
from envs.acting import Policy
from envs.playing import RowProgress, decisions
from experiments.contenders.preparing import parse_contender
from experiments.papers.cells import Cell
from experiments.records.privacy import privacy_report
from experiments.records.tensorboard import RoundWriter, final_metrics, run_parameters
from fl_core.base.files import spelled_out
from fl_core.run.basis import basis_of
from fl_core.run.choices import EVALUATIONS
from fl_core.run.config import RunSettings


def run_cell(cell: Cell, folder: Path, progress: RowProgress) -> dict[str, Any]:
    """Run a cell and return its results, as JSON values; an interruption leaves nothing but TensorBoard's events.

    Args:
        cell: the run.
        folder: of the whole table.
        progress: told of every round done.
    """
    began = time.monotonic()
    core = cell_core(cell)
    events = folder / "events" / cell.key
    shutil.rmtree(events, ignore_errors=True)
    core.reset([0], [RunSettings(seed=cell.seed)])
    with RoundWriter(events) as writer:
        writer.basis(basis_of(core.federation.config))
        rounds = _play(core, cell, writer, progress)
        writer.hparams(run_parameters(core, cell.controller, cell.seed, ""), final_metrics(core.history[0]))
    seconds = {"seconds": round(time.monotonic() - began, 3), "seconds_per_round": round(usual_time(rounds), 4)}
    return {"seed": cell.seed, **_results(core), **seconds}


def cell_core(cell: Cell) -> EnvCore:
    """Make the environment of a cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EnvCore(cell.setting)


def _policy(core: EnvCore, cell: Cell) -> Policy:
    """Make the controller, which starts from the table's clip norm."""
    return parse_contender(cell.controller).policy(core, cell.clip_norm)


def _play(core: EnvCore, cell: Cell, writer: RoundWriter, progress: RowProgress) -> list[float]:
    """Let the controller act to the end; returns the seconds of every round."""
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


def _results(core: EnvCore) -> dict[str, Any]:
    history = core.history[0]
    last = history[-1] if history else {}
    uploaded = [one["uplink_bytes"] for one in history if "uplink_bytes" in one]
    return {
        "rounds": len(history),
        "diverged": core.diverged(0),
        "figures": spelled_out(last),
        "tests": _tests(core, last),
        "uplink_bytes": float(np.mean(uploaded)) if uploaded else 0.0,
        "parameters": core.federation.model.size,
        "privacy": privacy_report(core, 0).as_json(),
        "history": spelled_out(history),
        "executor": core.federation.executor.choice,
    }


def _tests(core: EnvCore, last: Mapping[str, float]) -> dict[str, float]:
    """Measure the clients' final accuracy under every test: papers often leave open which one they took."""
    usual = core.federation.config.evaluation
    measured = {usual: last.get("personal_accuracy", 0.0)}
    for mode in EVALUATIONS:
        if mode != usual:
            measured[mode] = float(core.federation.evaluate(mode)["personal_accuracy"][0])
    return {mode: measured[mode] for mode in EVALUATIONS}
