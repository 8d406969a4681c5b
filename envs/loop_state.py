"""Checks of a control loop's saved state, field by field, before anything is taken over from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_core.base.errors import require

MEMORY, PLAN, SUMS, COUNTS = "memory.", "plan.", "sums.", "counts"
"""Names, or what names begin with, of the arrays that a state may have beyond those that every state has."""
_MAY_BE_UNKNOWN = ("figures.", SUMS)
"""Arrays in which NaN stands for what nobody has seen."""

Arrays = Mapping[str, NDArray[Any]]


def check_arrays(arrays: Arrays, own: Arrays, where: str) -> None:
    """Refuse arrays that no run of the same setting has saved.

    Args:
        arrays: of the state, by name.
        own: those of a run that has not begun.
        where: the state, for messages: "The file 'x'".

    Raises:
        InputError: one is missing, is not of its shape or type, or is not finite.
    """
    for name, like in own.items():
        require(name in arrays, f"{where} lacks the array '{name}' of a run like this.")
        found = arrays[name]
        require(
            found.shape == like.shape and found.dtype == like.dtype,
            f"{where} holds '{name}' as {found.dtype} of shape {found.shape}, but in this run it is {like.dtype} of "
            f"shape {like.shape}.",
        )
    for name, found in arrays.items():
        require(found.dtype.kind in "fiub", f"{where} holds '{name}' as {found.dtype}, but it must be numbers.")
        single = name in own or name.startswith((MEMORY, PLAN))
        require(
            single or ((name == COUNTS or name.startswith(SUMS)) and found.shape == (1,)),
            f"{where} holds '{name}' of shape {found.shape}, which is no array of a run like this.",
        )
        known = name.startswith(_MAY_BE_UNKNOWN) or bool(np.isfinite(found).all())
        require(known, f"{where} holds '{name}' with a number that is not finite.")


def check_plain(plain: Mapping[str, Any], arrays: Arrays, most_ahead: int, where: str) -> None:
    """Refuse counts and marks that contradict themselves or the arrays.

    Args:
        plain: of the state.
        arrays: of the state, by name.
        most_ahead: rounds that one decision is for.
        where: the state, for messages.

    Raises:
        InputError: one is missing, of another type or out of range.
    """
    for name, kind, words in (
        ("observed", int, "a whole number from 0"),
        ("ahead", int, f"a whole number from 0 to {most_ahead}"),
        ("refused", bool, "true or false"),
        ("remembers", bool, "true or false"),
    ):
        value = plain.get(name, "missing")
        fits = type(value) is kind and 0 <= value <= (most_ahead if name == "ahead" else value)
        require(fits, f"{where}: {name} is {value!r:.60}, but it must be {words}.")
    memory, plan = (any(name.startswith(kind) for name in arrays) for kind in (MEMORY, PLAN))
    require(
        plain["remembers"] == memory,
        f"{where}: remembers is {plain['remembers']}, but it holds {'a' if memory else 'no'} memory of the controller.",
    )
    require(plan or not plain["ahead"], f"{where}: ahead is {plain['ahead']}, but it holds no plan for these rounds.")
