"""Knobs: what an action sets. Each maps a coordinate in [-1, 1] to a value of the round plan, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.tasks import Task
from fl_core.errors import InputError, require, unknown_name
from fl_core.recipes.catalog import METHODS
from fl_core.recipes.parts import KnobRange
from fl_core.rounds import FloatArray

PER_LAYER = "."
"""Between the name of a knob and that of the layer it is for."""


@dataclass(frozen=True)
class Knob(KnobRange):
    """A setting that a controller chooses for each round: a method's, in the range that a task gives it.

    Its default stands in where a controller does not set it, or sets nonsense.
    """

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


NO_KNOBS = "none"


def known_knobs() -> dict[str, KnobRange]:
    """Every knob that some method has, by name."""
    return {knob.name: knob for recipe in METHODS.values() for knob in recipe.knobs}


def make_knob(task: Task, knob: KnobRange, layer: str = "") -> Knob:
    """A method's knob in a task, which narrows the clip norm; `layer` names the one of a knob per layer."""
    low, high, default = knob.low, knob.high, knob.default
    if knob.name == "clip_norm":
        (low, high), default = task.clip_range, task.clip_norm
    name = f"{knob.name}{PER_LAYER}{layer}" if layer else knob.name
    return Knob(name, low, high, default, knob.scale, knob.summary)


def make_knobs(
    task: Task, names: str, method_knobs: Sequence[KnobRange], layers: Sequence[str] = ()
) -> tuple[Knob, ...]:
    """The knobs of a comma-separated list; `none` stands for no knob at all.

    Args:
        task: whose ranges hold.
        names: as typed. A knob with one value per layer becomes one knob for each.
        method_knobs: what the method has.
        layers: names of the model's layers.

    Raises:
        InputError: one is unknown, repeated, or the method does not have it.
    """
    if names.strip() == NO_KNOBS:
        return ()
    wanted = [name.strip() for name in names.split(",")]
    own, made = {knob.name: knob for knob in method_knobs}, []
    for name in wanted:
        if name not in known_knobs():
            raise unknown_name("knob", name, known_knobs())
        if name not in own:
            has = ", ".join(own) or "none at all"
            raise InputError(f"knob '{name}' does not exist in method '{task.federation.method}'; it has {has}.")
        made += [make_knob(task, own[name], layer) for layer in (layers if own[name].per_layer else ("",))]
    require(len(set(wanted)) == len(wanted), f"knobs is '{names}', but each may be named only once.")
    return tuple(made)


def plan_values(knobs: Sequence[Knob], values: Sequence[FloatArray]) -> dict[str, FloatArray]:
    """Values `[runs]` of knobs as a round plan takes them: those of one knob per layer together, `[runs, layers]`."""
    named: dict[str, list[FloatArray]] = {}
    for knob, value in zip(knobs, values, strict=True):
        named.setdefault(knob.name.partition(PER_LAYER)[0], []).append(value)
    per_layer = {knob.name.partition(PER_LAYER)[0] for knob in knobs if PER_LAYER in knob.name}
    return {name: np.stack(own, axis=-1) if name in per_layer else own[0] for name, own in named.items()}
