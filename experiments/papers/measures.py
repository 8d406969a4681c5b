"""Measures of the papers' tables: each an entry of a catalogue, read off the rounds in a run's record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_core.base.bounds import Bounds
from fl_core.base.libraries import numpy as np

Record = Mapping[str, Any]
"""Record of a finished cell."""
Round = Mapping[str, Any]
"""Metrics of one round by name."""

TARGET = Bounds(0, 100, "it is an accuracy in percent", above=True)
ACCURACY = "personal_accuracy"
"""Metric that a target accuracy is about."""


@dataclass(frozen=True)
class Reading:
    """A measure of one run, or of several.

    Attributes:
        value: the number; None where there is none.
        above: bound that the number is above, where a target was not reached; else None.
        reason: why there is no number; else "".
    """

    value: float | None
    above: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Curve:
    """A measure of one run after each of its rounds.

    Attributes:
        rounds: rounds that it was measured after, from 1.
        values: the measure after each, in its unit.
    """

    rounds: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Measure:
    """An entry of the catalogue of measures, one of which each printed number is.

    Attributes:
        summary: its meaning and unit, for headings.
        unit: name and unit of an axis.
        read: its reading of a record, for a target accuracy in percent.
        after: its value after a round, None where the round has none; None for a measure that is no curve.
        has_target: whether it is about a target accuracy, and so accuracy must be measured after every round.
    """

    summary: str
    unit: str
    read: Callable[[Record, float], Reading]
    after: Callable[[Round], float | None] | None = None
    has_target: bool = False

    def curve(self, record: Record) -> Curve:
        """Read the measure after every round that has it.

        Args:
            record: of a finished cell.
        """
        assert self.after is not None
        found = [(number, self.after(one)) for number, one in enumerate(record["history"], 1)]
        known = [(number, value) for number, value in found if value is not None and math.isfinite(value)]
        return Curve(tuple(number for number, _ in known), tuple(value for _, value in known))


def _metric(name: str, scale: float = 1.0) -> Callable[[Round], float | None]:
    """Reader of a round's metric; None where the round has none."""
    return lambda one: scale * float(one[name]) if name in one else None


def _last(name: str, scale: float = 1.0) -> Callable[[Record, float], Reading]:
    """Reader of a metric after the last round."""
    metric = _metric(name, scale)

    def read(record: Record, target: float) -> Reading:
        value = metric(record["figures"])
        if value is None and record["diverged"]:
            return Reading(0.0) if name.endswith("accuracy") else Reading(None, reason="the run diverged")
        if value is None:
            return Reading(None, reason=f"the method has no {name}")
        return Reading(value) if math.isfinite(value) else Reading(None, reason="the run diverged")

    return read


def _always(value: Callable[[Record], float]) -> Callable[[Record, float], Reading]:
    """Reader of what every record has."""
    return lambda record, target: Reading(value(record))


def ledger_epsilon(one: Round) -> float:
    """Read the ε that the ledger counts after a round, had the run been planned to end with it.

    As published it is that of the noise on the updates alone, whatever else is given away; not the paper's claim.
    """
    return float(one.get("epsilon_of_updates", one["epsilon_spent"]))


def _to_accuracy(cost: Callable[[Round, int], float]) -> Callable[[Record, float], Reading]:
    """Reader of the cost of the rounds up to the first after which the clients' models reach the target."""

    def read(record: Record, target: float) -> Reading:
        history = record["history"]
        measured = [(number, one) for number, one in enumerate(history, 1) if ACCURACY in one]
        reached = [(number, one) for number, one in measured if 100 * float(one[ACCURACY]) >= target]
        if not reached and not measured:
            return Reading(None, reason="the run diverged" if record["diverged"] else f"the method has no {ACCURACY}")
        number, last = reached[0] if reached else (len(history), history[-1])
        spent = cost(last, number)
        if not math.isfinite(spent):
            return Reading(None, reason="no epsilon holds for a run without noise")
        if reached:
            return Reading(spent)
        rounds = f"{number} round{'s' if number != 1 else ''}"
        return Reading(None, spent, f"accuracy {target:g} % was not reached in {rounds}")

    return read


MEASURES: dict[str, Measure] = {
    "personal_accuracy": Measure(
        "accuracy of the clients' models in percent, mean over clients",
        "accuracy (%), mean over clients",
        _last(ACCURACY, 100),
        _metric(ACCURACY, 100),
    ),
    "global_accuracy": Measure(
        "accuracy of the server's model in percent",
        "accuracy of the server's model (%)",
        _last("global_accuracy", 100),
        _metric("global_accuracy", 100),
    ),
    "train_loss": Measure(
        "training loss in the last round with the method's own terms, mean over local steps and clients (nats)",
        "training loss (nats)",
        _last("train_loss"),
        _metric("train_loss"),
    ),
    "epsilon_to_accuracy": Measure(
        "epsilon spent on the way to a target accuracy of the clients' models",
        "ε on the way to the accuracy",
        _to_accuracy(lambda one, number: ledger_epsilon(one)),
        has_target=True,
    ),
    "rounds_to_accuracy": Measure(
        "rounds to a target accuracy of the clients' models",
        "rounds to the accuracy",
        _to_accuracy(lambda one, number: number),
        has_target=True,
    ),
    "uplink_bytes": Measure(
        "bytes uploaded per client and round, mean over rounds",
        "upload per client and round (bytes)",
        _always(lambda record: float(record["uplink_bytes"])),
        _metric("uplink_bytes"),
    ),
    "personal_share": Measure(
        "share of the coordinates that clients kept personal in the last round, in percent",
        "personal coordinates (%)",
        _last("personal_share", 100),
        _metric("personal_share", 100),
    ),
    "uplink_saving": Measure(
        "bytes that clients need not upload, of those of the whole model, mean over rounds, in percent",
        "upload saved (%)",
        _always(lambda record: 100 * (1 - float(record["uplink_bytes"]) / (4 * int(record["parameters"])))),
    ),
    "seconds_per_round": Measure(
        "seconds per round, all clients one after another on one machine",
        "time per round (s)",
        _always(lambda record: float(record["seconds_per_round"])),
    ),
}


def mean_of(readings: Sequence[Reading]) -> Reading:
    """Average the readings of several runs.

    Where some runs did not reach the target, the mean is above that of the others' values and their bounds; where one
    has no value at all, neither has the mean.
    """
    reasons = dict.fromkeys(one.reason for one in readings if one.reason)
    bounds = [one.above if one.value is None else one.value for one in readings]
    known = [one for one in bounds if one is not None]
    missing = sum(one.value is None for one in readings)
    if not missing:
        return Reading(float(np.mean(known)))
    words = "; ".join(reasons) + (f" ({missing} of {len(readings)} runs)" if len(readings) > 1 else "")
    return Reading(None, float(np.mean(known)) if len(known) == len(readings) else None, words)
