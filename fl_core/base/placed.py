"""Functions and classes that a catalogue names by their place, so that its lines load none of their code."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Placed:
    """A function or class of this project that is imported when it is called.

    Attributes:
        place: where it is, as `module:name`.
    """

    place: str

    def load(self) -> Any:
        """Import it."""
        return resolve_name(self.place)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it."""
        return self.load()(*arguments, **keywords)
