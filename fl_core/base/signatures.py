"""Signatures of users' functions, refused before they are called with what they do not take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fl_core.base.errors import InputError, first_line


def require_call(
    function: Callable[..., Any], who: str, takes: str, positional: Sequence[Any], keywords: Sequence[str] = ()
) -> None:
    """Refuse a function that cannot be called with some arguments; one that is not written in Python is let through.

    Args:
        function: the function.
        who: the part that it belongs to, which begins the sentence.
        takes: what it is called with, in words.
        positional: as many values as it is given by position.
        keywords: names that it is given besides.

    Raises:
        InputError: it asks for more, or takes fewer.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        code = getattr(plain, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        where = f" of '{code.co_filename}'" if code is not None else ""
        name = getattr(plain, "__qualname__", type(function).__name__)
        raise InputError(
            f"{who}: {name}{signature}{where} takes other arguments ({first_line(error)}), but it is called with "
            f"{takes}."
        ) from error
