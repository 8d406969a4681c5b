"""Readers of what a user writes, as typed values: text of a command line, entries of a file, keyword arguments.

Everything that reads a value uses these functions, so that the same mistake gets the same sentence everywhere: the
field, the value it had, and what is allowed.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from fl_core.base.errors import InputError, require

NOUNS: Mapping[type, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
"""Types in words, for messages."""
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_COMMAS = re.compile(r",(?![^()]*\))")


def read_value(field: str, value: Any, kind: type, finite: bool = False) -> Any:
    """Convert a value to the type of its field.

    Args:
        field: name for the error message, if need be with where it stands ("vary: epsilon").
        value: text, or a value that has a type already; whole numbers pass as floats, nothing else changes its type.
        kind: `str`, `int`, `float` or `bool`.
        finite: True to refuse infinite numbers too.

    Raises:
        InputError: the value is of another type, or NaN.

    Examples:
        >>> read_value("rounds", "40", int), read_value("epsilon", "inf", float)
        (40, inf)
    """
    found = _converted(value, kind)
    if found is None or (kind is float and (math.isnan(found) or (finite and math.isinf(found)))):
        raise InputError(f"{field} is {value!r}, but it must be {'a finite number' if finite else NOUNS[kind]}.")
    return found


def _converted(value: Any, kind: type) -> Any:
    """Convert a value to a type; None where it is of another."""
    if isinstance(value, bool):
        return value if kind is bool else None
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is bool:
        return _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else None
    if not isinstance(value, (str, numbers.Integral if kind is int else numbers.Real)):
        return None
    try:
        return kind(value)
    except (ValueError, OverflowError):
        return None


def read_assignment(field: str, text: Any, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Split `NAME=VALUE` at its first equals sign.

    Args:
        field: name for the error message.
        text: as typed.
        form: the expected form, for the error message.

    Raises:
        InputError: it is no text, or one of the two is missing.
    """
    name, _, value = (piece.strip() for piece in text.partition("=")) if isinstance(text, str) else ("", "", "")
    require(bool(name and value), f"{field} is {text!r}, but it must read {form}.")
    return name, value


def read_list(field: str, text: str) -> list[str]:
    """Split a text at its commas, except those within parentheses; an empty text has no entries.

    Raises:
        InputError: it is no text, or an entry is empty.

    Examples:
        >>> read_list("vary", "iid, dirichlet(0.1,5)")
        ['iid', 'dirichlet(0.1,5)']
    """
    require(isinstance(text, str), f"{field} is {text!r}, but it must be text.")
    entries = [piece.strip() for piece in _COMMAS.split(text)] if text.strip() else []
    require(all(entries), f"{field} is {text!r}, but one of its comma-separated entries is empty.")
    return entries


@lru_cache(maxsize=64)
def field_kinds(record: type) -> Mapping[str, type]:
    """Map each field of a dataclass of texts, numbers and truth values to its type; `X | None` counts as X."""
    kinds = get_type_hints(record)
    return {one.name: next(iter(get_args(kinds[one.name])), kinds[one.name]) for one in fields(record)}
