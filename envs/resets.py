"""Choice of the instance that a reset plays: named, by a seed within the spec's set, or drawn from that set."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from fl_core.base.arguments import check_argument
from fl_core.base.errors import InputError, require, require_name
from fl_core.run.config import RunSettings
from fl_core.run.ranges import SEED

INSTANCE = "instance"
"""Reset option that names an instance, of any set or none."""
Seeds = int | Sequence[int | None] | None


def read_instance(value: Any) -> int:
    """Convert the seed that names an instance to Python's int.

    Raises:
        InputError: it is no seed of a run.
    """
    SEED.check(INSTANCE, value)
    return int(value)


def read_instances(seeds: Any, rows: int) -> list[int | None]:
    """Read the instances that rows play again and again; None leaves a row's to chance and its seeds.

    Raises:
        InputError: there is not one per row, or one is no seed of a run.
    """
    check_argument("seeds", seeds, Sequence[Any])
    require(len(seeds) == rows, f"There are {len(seeds)} seeds for {rows} environment{'s' if rows > 1 else ''}.")
    return [None if one is None else read_instance(one) for one in seeds]


def read_seed(field: str, value: Any) -> int:
    """Convert the seed of a reset to Python's int.

    Raises:
        InputError: it is not a whole number of at least 0.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 0
    require(whole, f"{field} is {value!r}, but it must be a whole number of at least 0.")
    return int(value)


def read_seeds(seed: Any, rows: int) -> list[int | None]:
    """Read the seeds of a batch: a seed s gives row i the seed s + i, a sequence has one, or None, for each row.

    Raises:
        InputError: one is not a whole number of at least 0, or there is not one per row.
    """
    if seed is None:
        return [None] * rows
    if not isinstance(seed, (list, tuple, np.ndarray)):
        first = read_seed("seed", seed)
        return [first + row for row in range(rows)]
    require(len(seed) == rows, f"There are {len(seed)} seeds for {rows} environments.")
    return [None if one is None else read_seed("seed", one) for one in seed]


def read_rows(rows: Sequence[int], count: int) -> list[int]:
    """Read places of runs in a batch, each named once.

    Raises:
        InputError: one is not a whole number from 0 to `count` - 1, or is named twice.
    """
    check_argument("rows", rows, Sequence[Any])
    found = list(rows)
    for row in found:
        known = isinstance(row, numbers.Integral) and not isinstance(row, bool) and 0 <= row < count
        require(known, f"rows holds {row!r}, but a row must be a whole number from 0 to {count - 1}.")
    require(len(set(found)) == len(found), f"rows is {found}, but each may be named only once.")
    return [int(row) for row in found]


def read_mask(mask: Any, count: int) -> list[int]:
    """Read the rows that a reset mask `[count]` selects; None selects all.

    Raises:
        InputError: it is not one bool per row, or selects none.
    """
    if mask is None:
        return list(range(count))
    chosen = np.asarray(mask)
    require(
        chosen.dtype == np.bool_ and chosen.shape == (count,) and bool(chosen.any()),
        f"reset_mask is {mask!r}, but it must be {count} bools, one of them True at least.",
    )
    return [int(row) for row in np.flatnonzero(chosen)]


def options_of_row(options: Mapping[str, Any], row: int, rows: int) -> dict[str, Any]:
    """Return a row's reset options of those of a batch, which may name an instance for each row.

    Raises:
        InputError: there is not one instance per row.
    """
    named = options.get(INSTANCE)
    if not isinstance(named, (list, tuple, np.ndarray)):
        return dict(options)
    require(len(named) == rows, f"{INSTANCE} names {len(named)} instances for {rows} environments.")
    return {**options, INSTANCE: named[row]}


def choose_instance(
    pool: Sequence[int],
    random: np.random.Generator,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    assigned: int | None = None,
) -> RunSettings:
    """Choose the run of a reset; only where nothing else chooses it, its instance is drawn, and nothing else is.

    Args:
        pool: instances of the spec's set, by seed; the set is not left unless an instance is named.
        random: of the environment, seeded already.
        seed: chooses the instance at place `seed` of the set, counted on from its beginning beyond its end.
        options: `instance`, and settings of the run.
        assigned: instance that the environment plays in every episode.

    Raises:
        InputError: another option is given, or a value is not allowed.
    """
    check_argument("options", options, Mapping[str, Any] | None)
    own = dict(options or {})
    for name in own:
        require_name("reset option", name, (INSTANCE, *_SETTINGS))
    named = own.pop(INSTANCE, assigned)
    if named is not None:
        instance = read_instance(named)
    else:
        instance = pool[int(random.integers(len(pool))) if seed is None else seed % len(pool)]
    try:
        return RunSettings(seed=instance, **own)
    except TypeError as error:
        raise InputError(f"The reset options {own} do not fit: {error}.") from error


_SETTINGS = tuple(field.name for field in fields(RunSettings) if field.name != "seed")
