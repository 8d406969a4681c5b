"""Rounds of runs and comparisons in tidy form: one row for each round, with the settings of its run."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.records.comparison import Comparison
from experiments.records.consistency import SUMMARY
from fl_core.base.errors import require
from fl_core.base.files import json_number, read_bytes, read_json
from fl_core.base.sealed import understood
from fl_core.base.text import is_printable

RUN_COLUMNS = ("task", "method", "controller", "signals", "guarantee", "population", "epsilon", "delta", "seed")
ROUNDS = "rounds.csv"
_SUMMARISED = {"epsilon": "epsilon_target"}
"""Column -> its name in a run's summary, where they differ."""


def run_rounds(folder: Path) -> list[dict[str, Any]]:
    """Read the rounds that a run has written to its rounds.csv; metrics are numbers.

    Raises:
        InputError: a file is missing, or is none that a run wrote: its rounds are not 1, 2, ... up to the number that
            the summary tells at least.
    """
    path = folder / SUMMARY
    with understood(f"The file '{path}' is none that a run wrote"):
        summary = read_json(path)
        about = {name: json_number(summary[_SUMMARISED.get(name, name)]) for name in RUN_COLUMNS}
        done = int(summary["rounds"])
    path = folder / ROUNDS
    with understood(f"The file '{path}' is none that a run wrote"):
        rows = [about | {"instance": "", "training": ""} | row for row in _numbered(read_bytes(path).decode("utf-8"))]
    # A run that is killed may have written a round that its summary does not know yet, never one less.
    require(len(rows) >= done, f"The file '{path}' holds {len(rows)} rounds, but {SUMMARY} beside it tells of {done}.")
    return rows


def _numbered(text: str) -> Iterator[dict[str, float]]:
    """Read rows of numbers, numbered by the column of rounds; an empty cell was not measured.

    Raises:
        ValueError: they are not that.
    """
    if text and not text.endswith("\n"):
        raise ValueError("its last line is cut off")
    try:
        columns, *rows = csv.reader(text.splitlines() or [""], strict=True)
    except csv.Error as error:
        raise ValueError(str(error)) from error
    known = not columns or columns[0] == "round"
    if not known or len(set(columns)) < len(columns) or not all(map(is_printable, columns)):
        raise ValueError("its first line does not name the columns of rounds")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns) or row[:1] != [str(number)]:
            raise ValueError(f"round {number} is not in line {number + 1}")
        numbers = {name: float(cell) for name, cell in zip(columns, row, strict=True) if cell}
        yield numbers | {"round": number}


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
