"""Checks of arguments and of a dataclass's fields against their annotations, with the sentence of any wrong value."""

from __future__ import annotations

import functools
import inspect
import numbers
import types
from collections.abc import Callable, Collection, Mapping
from collections.abc import Iterable as AnyIterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from fl_core.base.bounds import is_number
from fl_core.base.errors import InputError
from fl_core.base.libraries import generic, ndarray
from fl_core.base.text import short
from fl_core.base.values import NOUNS

P = ParamSpec("P")
R = TypeVar("R")
MOST = 2**63
"""No whole number that means anything here is larger."""
_PACKED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse arguments of another type than it is annotated with, before it does anything.

    Whole numbers pass as floats, and NumPy's scalars as Python's. Entries of sequences and values of mappings are held
    against theirs. A call with too few or unknown arguments stays Python's own TypeError.

    Raises:
        InputError: from the function, with the argument, its value and what it must be.

    Examples:
        >>> @checked
        ... def double(runs: int) -> int:
        ...     return 2 * runs
        >>> double("x")
        Traceback (most recent call last):
        fl_core.base.errors.InputError: runs is 'x', but it must be a whole number.
    """
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}
    plain = _plain_parameters(signature)

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        bound: Mapping[str, Any]
        if not named and len(arguments) == len(plain):  # binding takes longer than the check
            bound = dict(zip(plain, arguments, strict=True))
        else:
            try:
                bound = signature.bind(*arguments, **named).arguments
            except TypeError:
                return function(*arguments, **named)  # says what is missing, or unknown
        if not hints:
            hints.update(get_type_hints(function))
        for name, value in bound.items():
            if name in hints and signature.parameters[name].kind not in _PACKED:
                check_argument(name, value, hints[name])
        return function(*arguments, **named)

    return call


def _plain_parameters(signature: inspect.Signature) -> tuple[str, ...]:
    """List the parameters of a function that takes all of them by position; () for any other."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    return tuple(signature.parameters) if all(one.kind in kinds for one in parameters) else ()


def check_argument(name: str, value: Any, hint: Any) -> None:
    """Refuse a value of another type.

    Args:
        name: of the argument, for the sentence.
        value: what was given.
        hint: its annotation, resolved.

    Raises:
        InputError: it is of another type.
    """
    if not _fits(value, hint):
        raise InputError(f"{name} is {short(value)}, but it must be {_words(hint)}.")


def check_fields(record: Any) -> None:
    """Refuse a dataclass that has a value of another type than its field's.

    Raises:
        InputError: for the first such field.
    """
    cls: type = type(record)
    hints = _hints(cls)
    for one in fields(record):
        check_argument(one.name, getattr(record, one.name), hints[one.name])


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Resolve the annotations of a class: they are written as strings, which Python compiles anew every time."""
    return get_type_hints(cls)


def take_numbers(record: Any) -> None:
    """Replace NumPy's scalars in a frozen dataclass by Python's: files know no others, and texts show them otherwise.

    Examples:
        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> @dataclass(frozen=True)
        ... class Size:
        ...     rounds: int
        ...
        ...     def __post_init__(self):
        ...         take_numbers(self)
        >>> Size(np.int64(3))
        Size(rounds=3)
    """
    for one in fields(record):
        value = getattr(record, one.name)
        if isinstance(value, generic):
            object.__setattr__(record, one.name, value.item())


def _fits(value: Any, hint: Any) -> bool:
    """Return True for a value of an annotation's type; annotations that nothing is known of take anything."""
    if hint is Any or (type(value) is hint and hint is not int and not _is_array(hint)):
        return True
    if hint in (int, float, str, bool):
        return _is_plain(value, hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    cls = hint if origin is None else origin
    if not isinstance(cls, type) or getattr(cls, "_is_protocol", False):
        return True
    if issubclass(cls, (str, Path)):
        return isinstance(value, cls)
    if issubclass(cls, Mapping):
        keys, values = inner or (Any, Any)
        return isinstance(value, Mapping) and all(_fits(k, keys) and _fits(v, values) for k, v in value.items())
    if _is_record(cls, inner):
        return _is_series(value, cls) and len(value) == len(inner) and all(map(_fits, value, inner))
    if _holds_many(cls):
        looked_into = value if inner and isinstance(value, Collection) else ()  # an iterator would be used up
        return _is_series(value, cls) and all(_fits(one, inner[0]) for one in looked_into)
    if _is_array(cls):
        return isinstance(value, ndarray) and value.dtype.kind in "biuf"
    return isinstance(value, cls)


def _is_plain(value: Any, kind: type) -> bool:
    if kind is bool:
        return isinstance(value, bool) or (isinstance(value, generic) and value.dtype.kind == "b")
    if kind is str:
        return isinstance(value, str)
    if not is_number(value):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral) and -MOST <= int(value) < MOST
    return not isinstance(value, int) or abs(value) < MOST  # NaN is a number that the functions refuse themselves


def _is_series(value: Any, cls: type) -> bool:
    """Return True for a series that may stand for a sequence; a text is none, an array of one dimension is."""
    if isinstance(value, ndarray):
        return value.ndim == 1 and value.dtype.kind in "biuf"
    return isinstance(value, (tuple, list) if cls is tuple else cls) and not isinstance(value, (str, bytes, Mapping))


def _is_array(cls: type) -> bool:
    return cls is ndarray or (cls.__module__, cls.__name__) == ("numpy", "ndarray")


def _is_record(cls: type, inner: tuple[Any, ...]) -> bool:
    """Return True for `tuple[X, Y]`, whose entries have a type each."""
    return cls is tuple and bool(inner) and Ellipsis not in inner


def _holds_many(cls: type) -> bool:
    """Return True for the types of series, such as `Sequence`, `Iterable`, `list` and `tuple`."""
    return cls in (tuple, list) or (issubclass(cls, AnyIterable) and cls.__module__ == "collections.abc")


def _words(hint: Any) -> str:
    """Name an annotation's type in words."""
    if hint in NOUNS:
        return NOUNS[hint]
    if hint is type(None):
        return "None"
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(one) for one in inner))
    if origin is Literal:
        return " or ".join(f"'{one}'" for one in inner)
    cls = hint if origin is None else origin
    if not isinstance(cls, type):
        return "something else"
    if issubclass(cls, Mapping):
        return "a mapping" + (f" of {_many(inner[0])} to {_many(inner[1])}" if inner else "")
    if _is_record(cls, inner):
        return f"({', '.join(_words(one) for one in inner)})"
    if _holds_many(cls):
        return "a list" + (f" of {_many(inner[0])}" if inner else "")
    if _is_array(cls):
        return "an array of numbers"
    return f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"


def _many(hint: Any) -> str:
    """Name several of an annotation's type."""
    words = {int: "whole numbers", float: "numbers", str: "texts", bool: "truth values", Any: "values"}
    if hint in words:
        return words[hint]
    return f"{hint.__name__} objects" if isinstance(hint, type) else _words(hint)
