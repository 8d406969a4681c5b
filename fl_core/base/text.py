"""Text of strangers, made fit to be shown: names and paths from files may hold anything, also what a terminal obeys."""

from __future__ import annotations

import numbers
import unicodedata
from typing import Any

LONGEST_SENTENCE = 2000
"""Letters of a message; a longer one is cut in its middle."""
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's classes of control, format and surrogate characters, and of line separators."""
_JOINERS = "\u200c\u200d\u00ad"
"""Format characters of ordinary words."""


def is_printable(text: str) -> bool:
    """Return True if a text has no control character, none that turns its direction, and no lone surrogate."""
    return text.isprintable() or not any(map(_is_hidden, text))


def _is_hidden(letter: str) -> bool:
    return unicodedata.category(letter) in _HIDDEN and letter not in _JOINERS


def printable(text: str) -> str:
    r"""Replace letters that a terminal obeys, or that cannot be encoded, by their escapes.

    Examples:
        >>> printable("a\x1b[31m name")
        'a\\x1b[31m name'
    """
    if text.isprintable():
        return text
    return "".join(letter.encode("unicode_escape").decode() if _is_hidden(letter) else letter for letter in text)


def sentence(text: str) -> str:
    """Make a message of one printable line, cut in its middle where it is very long."""
    line = printable(text)
    half = LONGEST_SENTENCE // 2 - 2
    return line if len(line) <= LONGEST_SENTENCE else f"{line[:half]}...{line[-half:]}"


def short(value: Any, length: int = 60) -> str:
    """Quote a value in a message, cut to so many letters."""
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        value = value.item()  # NumPy's numbers as Python's
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested a thousand deep, or a number of ten thousand digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= length else text[: length - 3] + "..."
