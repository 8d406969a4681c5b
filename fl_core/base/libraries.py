"""Libraries that are imported on first use: torch, scipy and pandas take seconds, which names and numbers do not need.

A module whose classes and functions only compute with a library takes it from here, and loads none by being imported: a
recipe is data, and a command line is refused before the first tensor. One that is made of a library (subclasses of
`nn.Module`, constants of torch) imports it plainly. Type checkers read the stub beside this module, in which each name
is the library itself.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class Library(ModuleType):
    """A module that is imported when the first of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        self.__dict__[name] = value  # asked for in every round: the next time it is found without this function
        return value


class _OfTorch(type):
    """Type of `Tensor`, whose instances are those of torch's: none before torch is imported."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


class Tensor(metaclass=_OfTorch):
    """Stands for `torch.Tensor` in annotations, aliases and `isinstance`."""


metadata = Library("importlib.metadata")
torch = Library("torch")
nn = Library("torch.nn")
functional = Library("torch.nn.functional")
optimize = Library("scipy.optimize")
special = Library("scipy.special")
stats = Library("scipy.stats")
pandas = Library("pandas")
