"""Entries of the catalogue of models, made of whatever a user gives: a module, a class of modules, or a builder."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_core.base.errors import InputError, first_line
from fl_core.base.libraries import nn
from fl_core.base.libraries import numpy as np

Shape = tuple[int, int, int]
"""(channels, height, width) of an image."""
Builder = Callable[[Shape, int], Any]
"""Makes an `nn.Module` for a shape and a number of classes."""


@dataclass(frozen=True)
class ModelEntry:
    """A network of the catalogue.

    Attributes:
        build: makes the network for a shape of images and a number of classes.
        summary: description in one line.
        unfit_for_norm: reason why there is no `-groupnorm` variant, empty where there is one.
        content: SHA-256 of the weights of a module that was given; empty for a builder.
    """

    build: Builder
    summary: str
    unfit_for_norm: str = ""
    content: str = ""


_UNFIT = "it is no network of this package"


def model_entry_of(given: Any, who: str) -> ModelEntry:
    """Make an entry of what a user gives.

    Args:
        given: a `ModelEntry`, an `nn.Module`, whose weights every run then starts from, or a class or function that is
            called with the shape of an image and the number of classes, or with nothing, and returns a fresh module.
        who: for error messages.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(given, ModelEntry):
        return given
    if isinstance(given, nn.Module):
        return ModelEntry(_Copied(given), f"{type(given).__name__} with the weights as given", _UNFIT, _sha256(given))
    if not callable(given) or (inspect.isclass(given) and not issubclass(given, nn.Module)):
        kind = f"the class {given.__name__}" if inspect.isclass(given) else f"of type {type(given).__name__}"
        raise InputError(
            f"{who} is {kind}, but a model is an nn.Module, or a class or function that makes one from the images' "
            "shape and the number of classes."
        )
    summary = (inspect.getdoc(given) or "").partition("\n")[0].rstrip(".")
    own = "__doc__" not in vars(given) if inspect.isclass(given) else False
    return ModelEntry(_Built(given, _takes_sizes(given, who)), "" if own else summary, _UNFIT)


def _takes_sizes(given: Callable[..., Any], who: str) -> bool:
    """Return True if a builder takes shape and classes, False if it takes nothing."""
    try:
        signature = inspect.signature(given)
        required = [one for one in signature.parameters.values() if one.default is one.empty and one.kind < 2]
        if not required:
            signature.bind()
            return False
        signature.bind((1, 8, 8), 10)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{who} takes other arguments ({first_line(error)}), but it is called with the images' shape and the "
            "number of classes, or with nothing."
        ) from error
    return True


@dataclass(frozen=True, eq=False)
class _Built:
    """Builder by a user's class or function."""

    make: Callable[..., Any]
    takes_sizes: bool

    def __call__(self, shape: Shape, classes: int) -> Any:
        return self.make(shape, classes) if self.takes_sizes else self.make()


@dataclass(frozen=True, eq=False)
class _Copied:
    """Builder by copying a module, with its weights."""

    module: nn.Module

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        return copy.deepcopy(self.module)


def _sha256(module: nn.Module) -> str:
    """Digest a module's structure and weights."""
    whole = hashlib.sha256(repr(module).encode())
    for name, value in module.state_dict().items():
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        whole.update(np.ascontiguousarray(value.detach().cpu().double().numpy()).data)
    return whole.hexdigest()
