"""Knobs: what an action sets. Each maps a coordinate in [-1, 1] to a value of the round plan, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from envs.listing import Listing
from envs.relative_clip import RELATIVE_KNOBS
from envs.tasks import Task
from fl_core.base.arguments import checked
from fl_core.base.errors import InputError, require, unknown_name
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np
from fl_core.base.text import short
from fl_core.recipes.catalog import METHODS
from fl_core.recipes.parts import KnobRange
from fl_core.run.plan import FloatArray

PER_LAYER = "."
"""Between the name of a knob and that of the layer it is for."""


@dataclass(frozen=True)
class Knob(KnobRange):
    """A setting that a controller chooses for each round: a method's, in the range that a task gives it.

    Its default stands in where a controller does not set it.
    """

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        inside = self.low <= self.default <= self.high
        require(
            inside, f"default of knob '{self.name}' is {self.default:g}, but it spans {self.low:g} to {self.high:g}."
        )

    @property
    def cells(self) -> dict[str, str]:
        """Texts for a listing, by column."""
        return {
            "knob": self.name,
            "range": f"{self.low:g} to {self.high:g}",
            "scale": self.scale,
            "default": f"{self.default:g}",
            "what it sets": self.summary,
        }

    def decode(self, coordinate: FloatArray) -> FloatArray:
        """Decode action coordinates to values; beyond [-1, 1] they saturate, and NaN stays NaN.

        Raises:
            InputError: they are no numbers.
        """
        share = (np.clip(self._numbers(coordinate), -1.0, 1.0) + 1) / 2
        if self.scale == "log":
            values = np.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            values = self.low + share * (self.high - self.low)
        return np.asarray(np.clip(values, self.low, self.high), dtype=np.float64)

    def encode(self, value: float | FloatArray) -> FloatArray:
        """Encode values as action coordinates, saturating at the range; NaN stays NaN.

        Raises:
            InputError: they are no numbers.
        """
        inside = np.clip(self._numbers(value).astype(np.float64), self.low, self.high)
        if self.scale == "log":
            share = np.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return np.asarray(np.clip(2 * share - 1, -1.0, 1.0), dtype=np.float64)

    def _numbers(self, values: Any) -> NDArray[Any]:
        """Return numbers as an array of their own type; single precision stays single."""
        try:
            found = np.asarray(values)
        except (TypeError, ValueError):  # lists of different lengths
            found = np.asarray(None)
        if found.dtype.kind not in "iuf":
            raise InputError(f"{self.name} is {short(values)}, but it must be a number or an array of them.")
        return found

    @checked
    def check(self, value: float) -> float:
        """Return the value if it lies in the range.

        Raises:
            InputError: it is not a finite number in the range.
        """
        require(
            math.isfinite(value) and self.low <= value <= self.high,
            f"{self.name} is {value}, but this task allows {self.low:g} to {self.high:g}.",
        )
        return value


NO_KNOBS = "none"
EVERY_KNOB = "all"
KNOB_GROUPS: dict[str, tuple[str, ...]] = {
    "personalization": ("personal_rate", "personal_limit", "personal_threshold", "sparsity"),
}
"""Names that stand for several knobs: those of them that the method has."""
_BOUGHT = "telemetry_share"
FEW_METHODS = 8
"""Up to so many methods are named where one lacks a knob."""


def known_knobs() -> dict[str, KnobRange]:
    """Collect every knob that some method has, and the environment's own, by name."""
    own = {knob.name: knob for recipe in METHODS.values() for knob in recipe.knobs}
    return own | {name: knob.range for name, knob in RELATIVE_KNOBS.items()}


def target_of(name: str) -> str:
    """Name the knob that a knob sets, which is another one where it sets it in a unit of its own."""
    return RELATIVE_KNOBS[name].sets if name in RELATIVE_KNOBS else name


def make_knob(task: Task, knob: KnobRange, layer: str = "", default: float | None = None) -> Knob:
    """Make a method's knob for a task, which narrows the range of the clip norm.

    Args:
        task: whose clip norms hold.
        knob: as the method has it.
        layer: which one of a knob per layer this is.
        default: what a run does where nobody sets it; None takes the knob's own.
    """
    low, high, usual = knob.low, knob.high, knob.default if default is None else default
    if knob.name == "clip_norm":
        (low, high), usual = task.clip_range, task.clip_norm
    name = f"{knob.name}{PER_LAYER}{layer}" if layer else knob.name
    return Knob(name, low, high, min(max(usual, low), high), knob.scale, knob.summary)


def make_knobs(
    task: Task,
    names: str,
    method_knobs: Sequence[KnobRange],
    layers: Sequence[str] = (),
    defaults: Mapping[str, float] | None = None,
) -> Listing[Knob]:
    """Make the knobs of a comma-separated list; `none` stands for no knob at all, `all` for every one of the method.

    Args:
        task: whose ranges hold.
        names: as typed, with `KNOB_GROUPS`. A knob with one value per layer becomes one knob for each.
        method_knobs: what the method has.
        layers: names of the model's layers.
        defaults: what a run does where nobody sets a knob, where it is not the knob's own default.

    Raises:
        InputError: it is no text, or one is unknown, repeated, sets the same as another, or is not the method's.
    """
    own = _ranges(method_knobs)
    wanted = knob_names(task, names, method_knobs)
    require(len(set(wanted)) == len(wanted), f"knobs is '{names}', but each may be named only once.")
    _refuse_rivals(names, wanted)
    known = defaults or {}
    return Listing(
        make_knob(task, own[name], layer, known.get(name))
        for name in wanted
        for layer in (layers if own[name].per_layer else ("",))
    )


def knob_names(task: Task, names: str, method_knobs: Sequence[KnobRange]) -> list[str]:
    """Make the knobs of a comma-separated list, by name; arguments as in `make_knobs`.

    Raises:
        InputError: it is no text, or one is unknown or not the method's.
    """
    require(isinstance(names, str), f"knobs is {names!r}, but it must be text: names separated by commas.")
    if names.strip() == NO_KNOBS:
        return []
    own = _ranges(method_knobs)
    return [one for name in names.split(",") for one in _named(task, name.strip(), own)]


def _ranges(method_knobs: Sequence[KnobRange]) -> dict[str, KnobRange]:
    """Collect the knobs of a method by name, and those that set them in other units."""
    own = {knob.name: knob for knob in method_knobs}
    return own | {name: knob.range for name, knob in RELATIVE_KNOBS.items() if knob.sets in own}


def methods_with(name: str) -> list[str]:
    """List the methods that have a knob, or one of a group's."""
    names = set(KNOB_GROUPS.get(name, (name,)))
    names |= {target_of(one) for one in names}
    return [recipe.name for recipe in METHODS.values() if names & {knob.name for knob in recipe.knobs}]


def _named(task: Task, name: str, own: Mapping[str, KnobRange]) -> list[str]:
    """List the knobs that a name stands for."""
    method = task.federation.method
    if name == EVERY_KNOB:
        bought = task.federation.telemetry_share > 0
        found = [one for one in own if one not in RELATIVE_KNOBS and (bought or one != _BOUGHT)]
        require(bool(found), f"knobs is '{EVERY_KNOB}', but method '{method}' has none.")
        return found
    if name in KNOB_GROUPS:
        found = [one for one in KNOB_GROUPS[name] if one in own]
        options = ", ".join(KNOB_GROUPS[name])
        require(bool(found), f"method '{method}' has no knob of '{name}', which are {options}{_who_has(name)}.")
        return found
    if name not in own and name not in known_knobs():
        raise unknown_name("knob", name, [*known_knobs(), *KNOB_GROUPS, EVERY_KNOB, NO_KNOBS])
    has = ", ".join(own) or "none at all"
    require(name in own, f"knob '{name}' does not exist in method '{method}'; it has {has}{_who_has(name)}.")
    return [name]


def _who_has(name: str) -> str:
    """Name the methods that have a knob, or one of a group's, as the end of a sentence, if they are few."""
    methods = methods_with(name)
    return f"; methods with it: {', '.join(methods)}" if len(methods) <= FEW_METHODS else ""


def _refuse_rivals(names: str, wanted: Sequence[str]) -> None:
    """Refuse knobs that set the same."""
    sets = {name: target_of(name) for name in wanted}
    for target in dict.fromkeys(sets.values()):
        rivals = [name for name in wanted if sets[name] == target]
        require(
            len(rivals) <= 1,
            f"knobs is '{names}', but {' and '.join(rivals)} set the same thing; name one of them.",
        )


def plan_values(knobs: Sequence[Knob], values: Sequence[FloatArray]) -> dict[str, FloatArray]:
    """Collect values `[runs]` of knobs for a round plan; those of one knob per layer are stacked `[runs, layers]`."""
    named: dict[str, list[FloatArray]] = {}
    for knob, value in zip(knobs, values, strict=True):
        named.setdefault(knob.name.partition(PER_LAYER)[0], []).append(value)
    per_layer = {knob.name.partition(PER_LAYER)[0] for knob in knobs if PER_LAYER in knob.name}
    return {name: np.stack(own, axis=-1) if name in per_layer else own[0] for name, own in named.items()}
