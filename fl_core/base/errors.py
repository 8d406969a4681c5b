"""One kind of error for everything a user can get wrong.

Whatever raises it says in one sentence which field is at fault, the value it had and what is allowed. The command
line prints that sentence and exits with status 2.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

SHORT_CATALOGUE = 4
"""Catalogues of up to so many names are listed whole."""


class InputError(ValueError):
    """A request that cannot be carried out as it stands; the message is one sentence for the user."""


def unknown_name(field: str, value: object, allowed: Iterable[str]) -> InputError:
    """The error for a name that is in no catalogue, with near names first."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(value), names, n=3, cutoff=0.5)
    known = f"known are {', '.join(names)}"
    hint = f"did you mean {' or '.join(near)}" if near else known
    if near and len(names) <= SHORT_CATALOGUE:
        hint += f"; {known}"
    return InputError(f"{field} '{value}' is unknown; {hint}.")


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_name(field: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a name that is in no catalogue."""
    names = list(allowed)
    if value not in names:
        raise unknown_name(field, value, names)


def require_positive(field: str, value: float) -> None:
    """Refuse anything but a finite number above zero."""
    require(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0,
        f"{field} is {value}, but it must be a finite number above 0.",
    )


def require_count(field: str, value: int, least: int = 1) -> None:
    """Refuse anything but a whole number of at least `least`."""
    require(
        isinstance(value, int) and not isinstance(value, bool) and value >= least,
        f"{field} is {value}, but it must be a whole number of at least {least}.",
    )
