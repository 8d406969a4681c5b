"""Functions of this project that a catalogue names by their place, so that its lines load none of their code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Placed:
    """A function that is imported when it is called.

    Attributes:
        place: where it is, as `module:name`.
    """

    place: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        function: Callable[..., Any] = resolve_name(self.place)
        return function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self.load()(*arguments, **keywords)
