"""Frozen records as strict JSON: type checks from their annotations, and exactly their fields.

Numbers that JSON lacks are spelled as `fl_core.base.files` spells them (ε is infinite without privacy, a diverged run
has losses that are no numbers).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from fl_core.base.bounds import is_number
from fl_core.base.errors import require, require_name
from fl_core.base.files import json_number, spelled_out
from fl_core.base.text import short

_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool), "a whole number"),
    "int | None": (
        lambda v: v is None or (isinstance(v, numbers.Integral) and not isinstance(v, bool)),
        "a whole number or nothing",
    ),
    "float": (lambda v: is_number(v) and not math.isnan(v), "a number"),
    "float | None": (lambda v: v is None or (is_number(v) and not math.isnan(v)), "a number or nothing"),
    "str": (lambda v: isinstance(v, str), "a text"),
    "bool": (lambda v: isinstance(v, bool), "true or false"),
    "tuple[str, ...]": (lambda v: isinstance(v, tuple) and all(isinstance(x, str) for x in v), "a list of texts"),
    "tuple[int, ...]": (lambda v: isinstance(v, tuple) and all(map(_is_whole, v)), "a list of whole numbers"),
    "tuple[float, ...]": (lambda v: isinstance(v, tuple) and all(map(_is_finite, v)), "a list of numbers"),
    "list[list[int]]": (
        lambda v: isinstance(v, list) and all(isinstance(one, list) and all(map(_is_whole, one)) for one in v),
        "lists of whole numbers",
    ),
    "list[float]": (lambda v: isinstance(v, list) and all(map(_is_finite, v)), "a list of numbers"),
    "list[list[float]]": (
        lambda v: isinstance(v, list) and all(isinstance(one, list) and all(map(_is_finite, one)) for one in v),
        "lists of numbers",
    ),
    "list[dict[str, Any]]": (
        lambda v: (
            isinstance(v, list) and all(isinstance(one, dict) and all(map(_is_figure, one.values())) for one in v)
        ),
        "a list of names with numbers",
    ),
    "dict[str, Any]": (lambda v: isinstance(v, dict), "names with values"),
    "tuple[Any, ...] | None": (lambda v: v is None or isinstance(v, tuple), "a list or nothing"),
    "dict[str, float]": (
        lambda v: isinstance(v, dict) and all(map(_is_finite, v.values())),
        "names with numbers",
    ),
    "Mapping[str, str]": (
        lambda v: isinstance(v, Mapping) and all(isinstance(x, str) for x in v.values()),
        "names with texts",
    ),
    "Mapping[str, Any]": (
        lambda v: isinstance(v, Mapping) and all(isinstance(k, str) and _is_scalar(x) for k, x in v.items()),
        "names with texts or numbers",
    ),
    "Mapping[str, list[float]]": (
        lambda v: isinstance(v, Mapping) and all(isinstance(s, list) and all(map(is_number, s)) for s in v.values()),
        "names with lists of numbers",
    ),
}
"""Annotation -> (test of a value, the type in words); reading and the constructors share it."""


def check_types(record: Any, where: str) -> None:
    """Refuse a record that has a value of another type than its field's."""
    for field in fields(record):
        check_type(getattr(record, field.name), str(field.type), f"{where}: {field.name}")


def check_type(value: Any, annotation: str, name: str) -> None:
    """Refuse a value of another type than an annotation, one of `known_types` or the name of a record's class."""
    matches, words = _check_of(annotation)
    require(matches(value), f"{name} is {short(value)}, but it must be {words}.")


def known_types() -> Collection[str]:
    """List the annotations that `check_type` knows beside records."""
    return _CHECKS.keys()


def _check_of(annotation: str) -> tuple[Callable[[Any], bool], str]:
    if annotation in _CHECKS:
        return _CHECKS[annotation]
    if annotation.isidentifier():  # a record of that class
        return lambda v: type(v).__name__ == annotation, f"a {annotation} record"
    name = annotation.removeprefix("tuple[").removesuffix(", ...]")  # a tuple of records of that class
    return (
        lambda v: isinstance(v, tuple) and all(type(x).__name__ == name for x in v),
        f"a list of {name} records",
    )


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_figure(value: Any) -> bool:
    return value is None or _is_finite(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bool)) or (is_number(value) and not math.isnan(value))


def written(record: Any) -> dict[str, Any]:
    """Convert a record to a JSON object."""
    content: dict[str, Any] = spelled_out(record)
    return content


def record_fields(cls: Any, data: Any, where: str) -> dict[str, Any]:
    """Check that a JSON object has exactly the names of a record's fields, and return its entries, numbers decoded.

    Raises:
        InputError: it is no object, or a name is unknown or missing.
    """
    require(isinstance(data, Mapping), f"{where} must be a JSON object, not {short(data)}.")
    known = {field.name: field for field in fields(cls)}
    for name in data:
        require_name(f"{where} has a field that", name, known)
    missing = [name for name, field in known.items() if name not in data and field.default is MISSING]
    require(not missing, f"{where} lacks the field '{', '.join(missing)}'.")
    return {
        name: json_number(value) if str(known[name].type).startswith("float") else value for name, value in data.items()
    }


def items(value: Any, name: str, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Convert the entries of a JSON list; `InputError` for anything else."""
    require(isinstance(value, Sequence) and not isinstance(value, str), f"{name} must be a list, not {short(value)}.")
    return tuple(convert(entry) for entry in value)
