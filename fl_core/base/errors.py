"""Errors for everything a user can get wrong, and the checks that raise them.

A message names the field, its value and what is allowed, in one sentence. The command line prints it and exits with
status 2.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable

from fl_core.base.text import sentence, short

SHORT_CATALOGUE = 4
"""Largest catalogue whose names are all listed in a message, beside the near ones."""
LONGEST_NAME = 100
"""Letters of an unknown name that a message quotes in full."""


class InputError(ValueError):
    """A request that cannot be carried out as it stands; the message is one sentence for the user.

    What it quotes may be anybody's: letters that a terminal obeys are written as escapes.
    """

    def __init__(self, message: str):
        """Take the sentence."""
        super().__init__(sentence(message))


class FileError(InputError):
    """A file that the system does not let be written: no room, no permission; work that is kept can go on later."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened for quoting inside a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:")[:160] if lines else type(error).__name__


def unknown_name(field: str, value: object, allowed: Iterable[str]) -> InputError:
    """Build the error for a name that is not in a catalogue; near names come first.

    Prefer `require_name`; call this where the condition is not membership in `allowed`.
    """
    names = sorted(allowed)
    told = value if isinstance(value, str) and len(value) <= LONGEST_NAME else short(value)
    near = difflib.get_close_matches(str(told), names, n=3, cutoff=0.5)
    known = f"known are {', '.join(names)}"
    hint = f"did you mean {' or '.join(near)}" if near else known
    if near and len(names) <= SHORT_CATALOGUE:
        hint += f"; {known}"
    return InputError(f"{field} '{told}' is unknown; {hint}.")


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_name(field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise `InputError` unless the value is one of the allowed names, as in `method 'fedavgg' is unknown; ...`."""
    names = list(allowed)
    if not isinstance(value, str) or value not in names:
        raise unknown_name(field, value, names)


def require_positive(field: str, value: float) -> None:
    """Raise `InputError` unless the value is a finite number above zero."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (known and math.isfinite(value) and value > 0):
        raise InputError(f"{field} is {short(value)}, but it must be a finite number above 0.")


def require_count(field: str, value: int, least: int = 1) -> None:
    """Raise `InputError` unless the value is a whole number of at least `least`."""
    if not (isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least):
        raise InputError(f"{field} is {short(value)}, but it must be a whole number of at least {least}.")
