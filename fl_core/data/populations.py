"""Proxy and target: two fixed parts of a dataset that share no sample, so that what is learned on one spares the other.

A controller is trained and tuned on the proxies' runs and deployed on the targets'. The parts depend on the dataset
alone, not on a run's seed or partition: no client of any proxy run holds a sample of any target run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

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
    """Whether two populations have samples in common: all have, except proxy and target."""
    return {one, other} != {"proxy", "target"}


def population_members(labels: np.ndarray, population: str) -> NDArray[np.int64]:
    """Which samples belong to a population; every class gives each half its share, rounded up or down.

    Args:
        labels: integer [n].
        population: one of `POPULATIONS`.

    Returns:
        Sorted indices; those of `proxy` and `target` are disjoint and together all.
    """
    return np.sort(_every_other(labels, population))


def population_groups(groups: np.ndarray, population: str) -> NDArray[np.int64]:
    """Which natural clients belong to a population; each half gets as many, and the large ones as evenly as the small.

    Args:
        groups: integer [n], the natural client of each sample.
        population: one of `POPULATIONS`.

    Returns:
        Sorted group numbers; those of `proxy` and `target` are disjoint and together all.
    """
    names, sizes = np.unique(groups, return_counts=True)
    return np.sort(names[_every_other(sizes, population)])


def _every_other(kinds: np.ndarray, population: str) -> NDArray[np.int64]:
    """Positions of a population's members, when all stand in a row, sorted by kind and shuffled within each."""
    row = np.lexsort((numpy_generator(_SEED, "population").random(len(kinds)), kinds))
    return {"all": row, "proxy": row[::2], "target": row[1::2]}[population]
