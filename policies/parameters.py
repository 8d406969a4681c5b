"""Parameters of hand-coded controllers: names, allowed values, and the sources of defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from envs.knobs import Knob
from fl_core.base.errors import require
from fl_core.base.libraries import numpy as np
from fl_core.base.values import read_value


@dataclass(frozen=True)
class Range:
    """Values that a parameter may take in every task.

    Attributes:
        holds: returns True for an allowed value, of finite ones.
        text: the range in words, for error messages.
    """

    holds: Callable[[float], bool]
    text: str


POSITIVE = Range(lambda value: value > 0, "a finite number above 0")
ANY = Range(lambda value: True, "a finite number")
SHARE = Range(lambda value: 0 < value < 1, "a number above 0 and below 1")
NOT_NEGATIVE = Range(lambda value: value >= 0, "a finite number of at least 0")
WHOLE = Range(lambda value: value >= 0 and value == int(value), "a whole number of at least 0")
COUNT = Range(lambda value: value >= 1 and value == int(value), "a whole number of at least 1")

LARGEST = 2.0**32
"""No parameter is above it; the largest of all are seeds."""
PLAIN, ANCHOR, KNOB = "plain", "anchor", "knob"
"""Units of defaults: 1, the anchor clip norm C* (the knob's default where there is none), the knob's default."""


MULTIPLE = "x"
"""After a clip norm: it is a multiple of the calibrated length of an update."""


class Multiple(float):
    """A clip norm that is shown as a multiple, `1.5x`."""

    @override
    def __format__(self, spec: str) -> str:
        return super().__format__(spec) + MULTIPLE


@dataclass(frozen=True)
class Parameter:
    """A number that a controller is made with.

    Attributes:
        name: keyword of `for_env`; specs show it in capitals.
        summary: description, with its unit.
        default: value where none is given, in multiples of `unit`.
        unit: one of `PLAIN`, `ANCHOR`, `KNOB`.
        allowed: values allowed in every task.
        knob: the knob whose range bounds it in a task; empty where none does.
        search: values that a search tries; where there are none, it tries values over the knob's range.
    """

    name: str
    summary: str
    default: float
    unit: str = PLAIN
    allowed: Range = POSITIVE
    knob: str = ""
    search: tuple[float, ...] = ()

    @property
    def in_multiples(self) -> bool:
        """True if it is a clip norm, which may be given as a multiple of the calibrated length."""
        return self.knob == "clip_norm"

    @property
    def default_text(self) -> str:
        """The default in words, for lists and help."""
        if self.unit == PLAIN:
            return f"{self.default:g}"
        noun = "anchor clip norm" if self.unit == ANCHOR else f"the task's default {self.knob}"
        return noun if self.default == 1 else f"{self.default:g} x {noun}"

    def check(self, controller: str, value: float) -> float:
        """Return the value as a float if some task allows it.

        Raises:
            InputError: it is not a finite number in the allowed range.
        """
        who = f"{self.name} of controller '{controller}'"
        value = read_value(who, value, float)
        require(
            math.isfinite(value) and self.allowed.holds(value),
            f"{who} is {value:g}, but it must be {self.allowed.text}.",
        )
        require(abs(value) <= LARGEST, f"{who} is {value:g}, but it must be {LARGEST:g} at most.")
        return float(value)

    def candidates(self, knob: Knob | None, points: int) -> tuple[float, ...]:
        """List the values that a search tries; none where neither `search` nor a knob gives any.

        Args:
            knob: the knob that bounds this parameter, if any.
            points: number of values over its range, evenly on its scale and without its ends.
        """
        if self.search or knob is None:
            return self.search
        inside = np.linspace(-1, 1, points + 2)[1:-1]
        return tuple(float(value) for value in knob.decode(inside))

    def default_value(self, knob: Knob | None, anchor: float | None) -> float:
        """Compute the default in a task; one derived from the anchor stays within the knob's range.

        Args:
            knob: the knob that bounds this parameter, if any.
            anchor: clip norm C*, inside the knob's range; None takes the knob's default.
        """
        if knob is None or self.unit == PLAIN:
            return self.default
        base = knob.default if anchor is None or self.unit == KNOB else anchor
        return float(np.clip(self.default * base, knob.low, knob.high))
