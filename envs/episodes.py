"""Records of a batch's episodes: the figures of every round, what was measured, and how each run ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envs.fleet import Fleet
from envs.resets import read_rows
from fl_core.base.errors import require
from fl_core.base.files import json_number, spelled_out
from fl_core.run.figures import figure_names
from fl_core.run.plan import BoolArray, FloatArray, RoundReport

OUTSIDE = "actions_outside"
NOT_MEASURED = -math.inf
"""Value in `info` of a figure that was not measured. NaN would fail Gymnasium's checker, which compares infos with ==;
a number could be taken for a measured one."""


class Episodes:
    """Present episode of every run of a batch.

    Attributes:
        runs: rows of the batch.
        fleet: the runs.
        history: per run, the figures of every round of the present episode.
        finished: runs that are over `[runs]`.
        failed: runs that ended because their policy returned no number `[runs]`.
        begun: runs that have been reset `[runs]`.
        figure_names: names of all figures that a round may have; `info` has them all.
    """

    def __init__(self, fleet: Fleet, runs: int, accuracy: str, knobs: Sequence[str]):
        """Record the runs of a fleet.

        Args:
            fleet: the runs.
            runs: how many.
            accuracy: figure that a run is judged by.
            knobs: settings of the rounds' plans that a controller sets.
        """
        self.fleet, self.runs, self._accuracy = fleet, runs, accuracy
        self.history: list[list[dict[str, float]]] = [[] for _ in range(runs)]
        self.finished = np.ones(runs, dtype=bool)
        self.failed = np.zeros(runs, dtype=bool)
        self.begun = np.zeros(runs, dtype=bool)
        self._metrics: dict[str, FloatArray] = {}
        every = [name for member in fleet.members for name in figure_names(member, knobs)]
        self.figure_names = tuple(dict.fromkeys([*every, OUTSIDE]))

    def _begin(self, rows: Sequence[int], metrics: Mapping[str, FloatArray]) -> None:
        """Begin new episodes, with accuracies and losses `[runs]` if they were measured."""
        for row in rows:
            self.finished[row], self.failed[row], self.begun[row] = False, False, True
            self.history[row] = []
            self._put(metrics, row)

    def _record(self, report: RoundReport, outside: FloatArray) -> None:
        """Record a round, and the share of each action `[runs]` that lay outside its range."""
        for row in np.flatnonzero(report.ran):
            figures = {name: float(value[row]) for name, value in report.figures.items()}
            self.history[row].append(figures | {OUTSIDE: float(outside[row])})

    def _record_evaluation(self, metrics: Mapping[str, FloatArray], rows: BoolArray) -> None:
        """Record accuracies and losses of some runs, in the last round of their history too."""
        for row in np.flatnonzero(rows):
            self._put(metrics, int(row))
            if self.history[row]:
                self.history[row][-1] |= {name: float(value[row]) for name, value in metrics.items()}

    def _put(self, metrics: Mapping[str, FloatArray], row: int) -> None:
        for name, value in metrics.items():
            self._metrics.setdefault(name, np.zeros(self.runs))[row] = value[row]

    # ---------------------------------------------------------------- what they tell

    def info(self, row: int) -> dict[str, float]:
        """Return `round`, `seed` and the figures of a run's last round, by the same names at all times.

        `NOT_MEASURED` stands for those that no round has measured, or that are no number. Exact figures of the clients
        are among them, which no epsilon covers: `find_metric` tells the class of each.
        """
        [row] = read_rows([row], self.runs)
        federation, last = self.fleet.of(row), self.last_figures(row)
        info: dict[str, float] = {"round": int(federation.rounds[row]), "seed": federation.settings[row].seed}
        for name in self.figure_names:
            value = last.get(name, NOT_MEASURED)
            info[name] = NOT_MEASURED if math.isnan(value) else value
        return info

    def diverged(self, row: int) -> bool:
        """Return True if a run's model is no longer finite, or its policy's actions were not, which ends the run."""
        return bool(self.failed[row]) or not math.isfinite(self.last_figures(row).get("server_norm", 0.0))

    def divergence(self, row: int) -> str:
        """Say in words why a run has diverged; "" if it has not."""
        if self.failed[row]:
            return f"in round {len(self.history[row]) + 1} its controller returned no finite number"
        return "its model is no longer finite" if self.diverged(row) else ""

    def last_figures(self, row: int) -> dict[str, float]:
        """Return the figures of the last round of a run's episode; none before the first."""
        return self.history[row][-1] if self.history[row] else {}

    def final_figures(self, row: int) -> dict[str, float]:
        """Return the figures of a run's last round; when it is over, accuracies and losses also where it did none."""
        measured = self._metrics.items() if self.finished[row] else ()
        return {name: float(value[row]) for name, value in measured} | self.last_figures(row)

    def final_accuracy(self, row: int) -> float:
        """Return a finished run's accuracy: of the server's model or, where that is incomplete, of the clients'."""
        return float(self._metrics[self._accuracy][row])

    def _plain_state(self) -> dict[str, Any]:
        """Return all but the measured accuracies and losses as values for strict JSON."""
        return {
            "finished": self.finished.tolist(),
            "failed": self.failed.tolist(),
            "history": spelled_out(self.history),
        }

    def _load_plain_state(self, state: Mapping[str, Any]) -> None:
        self.finished, self.failed = (np.array(state[name], dtype=bool) for name in ("finished", "failed"))
        self.begun = np.ones(self.runs, dtype=bool)
        told_as = [
            isinstance(rounds, list) and all(isinstance(one, dict) for one in rounds) for rounds in state["history"]
        ]
        require(all(told_as), "The saved state has a history that does not list the figures of each round.")
        self.history = [
            [{name: json_number(value) for name, value in one.items()} for one in rounds] for rounds in state["history"]
        ]
        told = [len(rounds) for rounds in self.history]
        require(
            told == self.fleet.rounds.tolist() and self.finished.shape == self.failed.shape == (self.runs,),
            f"The saved state tells of {told} rounds, but its runs have done {self.fleet.rounds.tolist()}.",
        )
