"""Checks of the results in a cell's record: types and ranges of everything that tables, pictures and pages read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fl_core.base.bounds import is_number
from fl_core.base.errors import require
from fl_core.base.files import json_number
from fl_core.base.text import short
from fl_core.run.choices import EVALUATIONS

_Check = tuple[Callable[[Any], bool], str]


def _is_figure(value: Any) -> bool:
    return is_number(json_number(value))


def _is_size(value: Any) -> bool:
    return is_number(value) and math.isfinite(value) and value >= 0


def _is_share(value: Any) -> bool:
    return _is_size(value) and value <= 1


def _is_epsilon(value: Any) -> bool:
    return _is_figure(value) and json_number(value) >= 0


def _is_round(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_metric(name, one) for name, one in value.items())


def _is_metric(name: str, value: Any) -> bool:
    if not _is_figure(value):
        return False
    number = json_number(value)
    return math.isnan(number) or not name.endswith("_accuracy") or 0 <= number <= 1


_FLAG: _Check = (lambda v: isinstance(v, bool), "true or false")
_TEXT: _Check = (lambda v: isinstance(v, str), "a text")
_TEXTS: _Check = (lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v), "a list of texts")
_SIZE: _Check = (_is_size, "a finite number of at least 0")
_EPSILON: _Check = (_is_epsilon, "a number of at least 0")
_OPEN_EPSILON: _Check = (lambda v: v is None or _is_epsilon(v), "a number of at least 0 or nothing")
_RESULTS: Mapping[str, _Check] = {
    "figures": (_is_round, "metrics with numbers, accuracies between 0 and 1"),
    "history": (
        lambda v: isinstance(v, list) and all(_is_round(one) and _is_epsilon(one.get("epsilon_spent")) for one in v),
        "a list of rounds, each metrics with numbers, epsilon_spent among them and accuracies between 0 and 1",
    ),
    "tests": (
        lambda v: isinstance(v, Mapping) and set(v) == set(EVALUATIONS) and all(map(_is_share, v.values())),
        f"numbers between 0 and 1 for {', '.join(EVALUATIONS)}",
    ),
    "privacy": (lambda v: isinstance(v, Mapping), "a privacy report"),
    "diverged": _FLAG,
    "parameters": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 1, "a whole number of at least 1"),
    "uplink_bytes": _SIZE,
    "seconds": _SIZE,
    "seconds_per_round": _SIZE,
}
_PRIVACY: Mapping[str, _Check] = {
    "spent": _EPSILON,
    "certified": _OPEN_EPSILON,
    "updates_only": _EPSILON,
    "uploads_view": _OPEN_EPSILON,
    "at_small_delta": _OPEN_EPSILON,
    "uncovered": _TEXTS,
}
_LATER_PRIVACY: Mapping[str, _Check] = {"adaptive": _FLAG, "basis": _TEXT, "uploads_basis": _TEXT}
"""Entries that records of earlier versions lack."""


def check_results(record: Mapping[str, Any], where: str) -> None:
    """Check the results of a cell.

    Args:
        record: of the cell.
        where: the file, for the message.

    Raises:
        InputError: one is missing, or of another type or range than a run's.
    """
    _check(record, _RESULTS, where)
    privacy = record["privacy"]
    _check(privacy, _PRIVACY, where, "privacy.")
    _check(privacy, {name: one for name, one in _LATER_PRIVACY.items() if name in privacy}, where, "privacy.")
    certified, uncovered = privacy["certified"], privacy["uncovered"]
    require(
        certified is None or not uncovered,
        f"{where} certifies epsilon {short(certified)}, although it names {short(uncovered)} as uncovered.",
    )


def _check(values: Mapping[str, Any], checks: Mapping[str, _Check], where: str, owner: str = "") -> None:
    for name, (holds, words) in checks.items():
        require(name in values, f"{where} is no record of a cell: it lacks {owner}{name}.")
        require(holds(values[name]), f"{where}: {owner}{name} is {short(values[name])}, but it must be {words}.")
