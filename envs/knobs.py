"""Knobs: what an action sets. Each maps a coordinate in [-1, 1] to a value of the round plan, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from envs.tasks import Task
from fl_core.errors import InputError, require, unknown_name
from fl_core.rounds import FloatArray


@dataclass(frozen=True)
class Knob:
    """A setting that a controller chooses for each round.

    Attributes:
        name: field of the round plan.
        low, high: range of its values.
        default: value taken where a controller does not set it, or sets nonsense.
        scale: `log` or `linear`, how the action coordinate spans the range.
        summary: what it does.
    """

    name: str
    low: float
    high: float
    default: float
    scale: str
    summary: str

    def decode(self, coordinate: FloatArray) -> FloatArray:
        """Values of action coordinates; beyond [-1, 1] they saturate, and NaN means the default."""
        known = np.where(np.isnan(coordinate), self.encode(self.default), coordinate)
        share = (np.clip(known, -1.0, 1.0) + 1) / 2
        if self.scale == "log":
            values = np.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            values = self.low + share * (self.high - self.low)
        return np.clip(values, self.low, self.high).astype(np.float64)

    def encode(self, value: float | FloatArray) -> FloatArray:
        """Action coordinates of values, saturating at the range."""
        inside = np.clip(np.asarray(value, dtype=np.float64), self.low, self.high)
        if self.scale == "log":
            share = np.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return np.asarray(np.clip(2 * share - 1, -1.0, 1.0), dtype=np.float64)

    def check(self, value: float) -> float:
        """The value, refused outside the range.

        Raises:
            InputError: it is not a finite number in the range.
        """
        require(
            math.isfinite(value) and self.low <= value <= self.high,
            f"{self.name} is {value}, but this task allows {self.low:g} to {self.high:g}.",
        )
        return value


KNOBS: dict[str, Callable[[Task], Knob]] = {
    "clip_norm": lambda task: Knob(
        "clip_norm", *task.clip_range, task.clip_norm, "log", "clip norm C of the client updates"
    ),
    "server_learning_rate": lambda task: Knob(
        "server_learning_rate", 0.05, 2.0, 1.0, "log", "factor on the mean update"
    ),
}


NO_KNOBS = "none"


def make_knobs(task: Task, names: str, method_knobs: tuple[str, ...]) -> tuple[Knob, ...]:
    """The knobs of a comma-separated list; `none` stands for no knob at all.

    Raises:
        InputError: one is unknown, repeated, or the method does not have it.
    """
    if names.strip() == NO_KNOBS:
        return ()
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in KNOBS:
            raise unknown_name("knob", name, KNOBS)
        if name not in method_knobs:
            has = ", ".join(method_knobs) if method_knobs else "none at all"
            raise InputError(f"knob '{name}' does not exist in method '{task.federation.method}'; it has {has}.")
    require(len(set(wanted)) == len(wanted), f"knobs is '{names}', but each may be named only once.")
    return tuple(KNOBS[name](task) for name in wanted)
