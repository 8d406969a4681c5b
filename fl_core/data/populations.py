"""Proxy and target: two fixed halves of a dataset that share no sample.

Controllers are trained and tuned on runs of the proxy half and deployed on runs of the target half, which so loses no
privacy to tuning. The halves depend on the dataset alone, not on a run's seed or partition: no client of any proxy
run holds a sample of any target run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fl_core.base.arrays import IndexArray
from fl_core.base.libraries import numpy as np
from fl_core.base.streams import numpy_generator

POPULATIONS: Mapping[str, str] = MappingProxyType(
    {
        "all": "every sample of the dataset",
        "proxy": "one half, which controllers are trained and tuned on",
        "target": "the other half, which privacy is promised to",
    }
)
"""Name -> one line for help texts."""

_SEED = 0
"""The parts are the same in all runs."""


def share_samples(one: str, other: str) -> bool:
    """Return True if two populations have samples in common: all have, except proxy and target."""
    return {one, other} != {"proxy", "target"}


def population_members(labels: np.ndarray, population: str) -> IndexArray:
    """Select a population's samples; every class gives each half its share, rounded up or down.

    Args:
        labels: integer [n].
        population: one of `POPULATIONS`.

    Returns:
        Sorted indices; those of `proxy` and `target` are disjoint and together all.
    """
    return np.sort(_every_other(labels, population))


def population_groups(groups: np.ndarray, population: str) -> IndexArray:
    """Select a population's natural clients; both halves get as many, the large ones as evenly as the small.

    Args:
        groups: integer [n], the natural client of each sample.
        population: one of `POPULATIONS`.

    Returns:
        Sorted group numbers; those of `proxy` and `target` are disjoint and together all.
    """
    names, sizes = np.unique(groups, return_counts=True)
    return np.sort(names[_every_other(sizes, population)])


def _every_other(kinds: np.ndarray, population: str) -> IndexArray:
    """Select a population's positions: all stand in a row, sorted by kind and shuffled within each.

    The proxy takes every other one from the first on, the target the rest, so that each kind is halved.
    """
    row = np.lexsort((numpy_generator(_SEED, "population").random(len(kinds)), kinds))
    return {"all": row, "proxy": row[::2], "target": row[1::2]}[population]
