"""Ranges of numbers: what a numeric setting may be, and why no more.

Each module keeps the ranges of its fields in one table, beside the fields; `check_numbers` holds an object against it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_core.base.errors import InputError
from fl_core.base.text import short


def is_number(value: object) -> bool:
    """Return True for a real number, also one of NumPy, but not for a boolean."""
    if type(value) is float or type(value) is int:  # which an abstract class takes long to say
        return True
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class Bounds:
    """Range of a number.

    Attributes:
        low, high: its ends, in the range unless `above` or `below` says otherwise.
        why: reason for the ends, for the message: "more do not fit into any memory".
        whole: True if it must be an integer.
        above: True if `low` itself is out of it.
        below: True if `high` itself is out of it.
        also: single values that are allowed besides.

    Examples:
        >>> Bounds(0, 1, below=True).check("momentum", 0.9)
        >>> Bounds(1, 100, "more do not fit into memory", whole=True).check("clients", 1000)
        Traceback (most recent call last):
        fl_core.base.errors.InputError: clients is 1000, but it must be a whole number of at least 1 and at most 100: \
more do not fit into memory.
    """

    low: float = -math.inf
    high: float = math.inf
    why: str = ""
    whole: bool = False
    above: bool = False
    below: bool = False
    also: tuple[float, ...] = ()

    def hold(self, value: Any) -> bool:
        """Return True for a number in the range; NaN, truth values and texts are none."""
        if isinstance(value, bool) or not isinstance(value, numbers.Integral if self.whole else numbers.Real):
            return False
        number: Any = value
        inside = self.low <= number <= self.high and not (self.above and number == self.low)
        return bool(inside and not (self.below and number == self.high)) or number in self.also

    def check(self, field: str, value: Any) -> None:
        """Refuse a value out of the range.

        Raises:
            InputError: it is no number, or out of the range.
        """
        if not self.hold(value):
            told = f": {self.why}" if self.why and is_number(value) else ""
            raise InputError(f"{field} is {short(value)}, but it must be {self.allowed}{told}.")

    @property
    def allowed(self) -> str:
        """The range in words."""
        return " or ".join([self._range(), *(f"{value:g}" for value in self.also)])

    def _range(self) -> str:
        if self.whole:
            most = f" and at most {int(self.high)}" if math.isfinite(self.high) else ""
            return f"a whole number of at least {int(self.low)}{most}"
        if self.low == 0 and self.above and self.high == math.inf and self.below:
            return "a finite number above 0"
        return f"a number in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"


def count(least: int, most: int, why: str = "", also: Iterable[int] = ()) -> Bounds:
    """Make the range of a whole number."""
    return Bounds(least, most, why, whole=True, also=tuple(also))


def check_numbers(record: Any, bounds: Mapping[str, Bounds], where: str = "") -> None:
    """Hold the fields of an object against their ranges; a field that is None is left out.

    Args:
        record: any object that has all or some of the fields.
        bounds: ranges by field.
        where: what the fields belong to, for the message: "mechanism.".

    Raises:
        InputError: a value is out of its range.
    """
    for field, one in bounds.items():
        value = getattr(record, field, None)
        if value is not None:
            one.check(f"{where}{field}", value)
