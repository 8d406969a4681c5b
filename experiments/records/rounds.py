"""Rounds of runs and comparisons in tidy form: one row for each round, with the settings of its run."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.records.comparison import Comparison
from fl_core.base.errors import InputError
from fl_core.base.files import json_number, read_json

RUN_COLUMNS = ("task", "method", "controller", "signals", "guarantee", "population", "epsilon", "delta", "seed")
_SUMMARISED = {"epsilon": "epsilon_target"}
"""Column -> its name in a run's summary, where they differ."""


def run_rounds(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rounds that a run has written to its rounds.csv; metrics are numbers.

    Raises:
        InputError: a file is missing, or is none that a run wrote.
    """
    summary = read_json(folder / "summary.json")
    try:
        about = {name: json_number(summary[_SUMMARISED.get(name, name)]) for name in RUN_COLUMNS}
        with (folder / "rounds.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield about | {"instance": "", "training": ""} | _numbers(row)
    except (KeyError, TypeError, ValueError, OSError, csv.Error) as error:
        raise InputError(f"The folder '{folder}' holds a file that no run wrote ({error!r}).") from error


def _numbers(row: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {name: float(value) for name, value in row.items() if value != ""}
    return values | {"round": int(row["round"])}


def comparison_rounds(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield the rounds of every controller's runs in a comparison, those of the hindsight left aside."""
    for controller in comparison.controllers:
        for episode in controller.episodes:
            about = {
                "task": comparison.task,
                "method": comparison.method,
                "controller": controller.name,
                "signals": controller.signals,
                "guarantee": comparison.guarantee,
                "population": comparison.population,
                "epsilon": comparison.targets[episode.instance],
                "delta": comparison.delta,
                "seed": episode.seed,
                "instance": episode.instance,
                "training": controller.trainings[episode.training] if controller.trainings else "",
            }
            by_round: dict[int, dict[str, float]] = {}
            for name in episode.trajectory:
                for index, value in zip(*episode.series(name), strict=True):
                    by_round.setdefault(int(index), {})[name] = float(value)
            for index in sorted(by_round):
                yield about | {"round": index} | by_round[index]
