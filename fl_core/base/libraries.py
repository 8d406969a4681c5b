"""Libraries that are imported on first use: torch, scipy and pandas take seconds, which names and numbers do not need.

A module whose classes and functions only compute with a library takes it from here, and loads none by being imported: a
recipe is data, and a command line is refused before the first tensor. One that is made of a library (subclasses of
`nn.Module`, constants of torch) imports it plainly. Type checkers read the stub beside this module, in which each name
is the library itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Library(ModuleType):
    """A module that is imported when the first of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        self.__dict__[name] = value  # asked for in every round: the next time it is found without this function
        return value


class _Follower:
    """Finder that has something done once a library is imported, whoever imports it."""

    def __init__(self, name: str, action: Callable[[], None]):
        self._name, self._action = name, action

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find the library as without this finder, and have its loader do what follows; None for all others."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_follow(module: ModuleType) -> None:
                execute(module)
                self._action()

            spec.loader.exec_module = execute_and_follow  # type: ignore[method-assign]
        return spec


def after_import(library: str, action: Callable[[], None]) -> None:
    """Do something once a library is imported: now, if it is, or when somebody imports it."""
    if library in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Follower(library, action))


class _StandIn(type):
    """Type of classes whose instances are those of a library's class: none before the library is imported."""

    place: tuple[str, str]

    def __instancecheck__(cls, value: object) -> bool:
        library, name = cls.place
        return isinstance(value, getattr(sys.modules.get(library), name, ()))


class Tensor(metaclass=_StandIn):
    """Stands for `torch.Tensor` in annotations, aliases and `isinstance`."""

    place = ("torch", "Tensor")


class ndarray(metaclass=_StandIn):
    """Stands for `numpy.ndarray` in annotations, aliases and `isinstance`."""

    place = ("numpy", "ndarray")

    def __class_getitem__(cls, dtype: object) -> type[ndarray]:
        return cls


class generic(metaclass=_StandIn):
    """Stands for `numpy.generic`, the class of NumPy's scalars, in `isinstance`."""

    place = ("numpy", "generic")


metadata = Library("importlib.metadata")
NDArray = ndarray
ArrayLike = Any
"""These of `numpy.typing`, in annotations and aliases."""
numpy = Library("numpy")
gymnasium = Library("gymnasium")
spaces = Library("gymnasium.spaces")
torch = Library("torch")
nn = Library("torch.nn")
functional = Library("torch.nn.functional")
optimize = Library("scipy.optimize")
special = Library("scipy.special")
stats = Library("scipy.stats")
pandas = Library("pandas")
