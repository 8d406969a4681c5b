"""Frozen, disjoint sets of instances: what a controller is trained on, chosen by, and judged on.

An instance is one federated run; its seed fixes partition, initial model, cohorts, batches and noise. The clients of
training and validation are proxies, whose samples no client of a test instance holds.
"""

from __future__ import annotations

from fl_core.base.bounds import count
from fl_core.base.errors import require, require_name

INSTANCE_SETS = {"train": 1_000_000, "validation": 2_000_000, "test": 3_000_000}
"""First seed of each set."""
INSTANCE_POPULATIONS = {"train": "proxy", "validation": "proxy", "test": "target"}
"""Whose data the clients of each set hold, where nothing else is asked for."""
LARGEST_SET = 100_000
INSTANCES = count(1, LARGEST_SET, "a set has no more")
"""Instances that may be asked for."""
PLACE = count(0, LARGEST_SET - 1, "a set has no more")
"""Place of an instance in its set."""


def instance_seeds(name: str, size: int, first: int = 0) -> list[int]:
    """List `size` seeds of a set, from the one at place `first` on.

    Raises:
        InputError: the set is unknown, or does not reach so far.
    """
    require_name("instances", name, INSTANCE_SETS)
    INSTANCES.check("size", size)
    PLACE.check("first", first)
    require(first + size <= LARGEST_SET, f"first is {first} and size is {size}, but a set ends at {LARGEST_SET}.")
    return [INSTANCE_SETS[name] + offset for offset in range(first, first + size)]


def instance_population(name: str) -> str:
    """Whose data the clients of a set of instances hold.

    Raises:
        InputError: the set is unknown.
    """
    require_name("instances", name, INSTANCE_POPULATIONS)
    return INSTANCE_POPULATIONS[name]
