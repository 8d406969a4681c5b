"""Settings of the federated runs of a paper's table, merged from its layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from envs.tasks import find_task
from experiments.papers.tables import Block, Layer
from fl_core.base.errors import InputError
from fl_core.data.datasets import dataset_available, dataset_entry
from fl_core.run.config import FederationConfig

SUBSTITUTES = {"fashion-mnist": (1, 28, 28), "mnist5k": (1, 28, 28), "digits": (1, 8, 8)}
"""Datasets that may take the place of one that is not at hand, best first, and the shape of their images."""
HELD_FIXED = "none"
"""Controller of a row that names none: no knob is set, so that the clip norm stays the table's."""
OWN_DEFAULTS = {"clip_norm": 1.0, "controller": HELD_FIXED}
"""Settings of a cell beside its federation's, and what they are where its layers name none."""


def choose_dataset(wanted: str, forced: str = "") -> str:
    """Choose the dataset: the forced one, the paper's, or the best substitute that is at hand."""
    if forced:
        dataset_entry(forced)
        return forced
    return next(name for name in (wanted, *SUBSTITUTES) if dataset_available(name))


def layers_of(block: Block, row: str, column: str, dataset: str) -> list[Layer]:
    """List the layers of a cell on a dataset, which may be a substitute of the paper's."""
    layers: list[Layer] = [*block.layers(row, column), {"dataset": dataset}]
    return [*layers, block.substitute] if dataset != block.dataset else layers


def cell_federation(table: str, row: str, values: Mapping[str, Any], guarantee: str, change: Layer) -> FederationConfig:
    """Make the settings of a cell's run.

    Args:
        table, row: names of where it is.
        values: its merged layers, with `change` on top.
        guarantee: meaning of epsilon.
        change: settings that replace the table's everywhere.

    Raises:
        InputError: a setting is not allowed.
    """
    try:
        return make_federation(values, guarantee)
    except InputError as error:
        if "method" not in change:
            raise
        raise InputError(
            f"change: method '{change['method']}' does not fit row '{row}' of {table}, which sets options of "
            f"its own: {error}"
        ) from error


def make_federation(values: Mapping[str, Any], guarantee: str) -> FederationConfig:
    """Make the settings of a run; without noise they are the same under every guarantee and at every ε."""
    values = {"population": "all", **values}  # a paper's federation is made of its whole dataset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the papers' delta: it is told once, with the table
        free = {"guarantee": "as-published", "epsilon": math.inf, "noise_multiplier": None}
        config = find_task("digits", **{**values, **free}).federation
        if not config.recipe().private:
            return replace(config, guarantee="sound")
        return find_task("digits", **{**values, "guarantee": guarantee}).federation
