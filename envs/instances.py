"""Frozen, disjoint sets of seeds: what a controller is trained on, chosen by, and judged on.

An instance is one federated run; its seed fixes partition, initial model, cohorts, batches and noise.
"""

from __future__ import annotations

from fl_core.errors import require, require_count, unknown_name

INSTANCE_SETS = {"train": 1_000_000, "validation": 2_000_000, "test": 3_000_000}
"""First seed of each set."""
LARGEST_SET = 100_000


def instance_seeds(name: str, count: int) -> list[int]:
    """The first `count` seeds of a set.

    Raises:
        InputError: the set is unknown, or the count is not a whole number from 1 to `LARGEST_SET`.
    """
    if name not in INSTANCE_SETS:
        raise unknown_name("instances", name, INSTANCE_SETS)
    require_count("Number of instances", count)
    require(count <= LARGEST_SET, f"Number of instances is {count}, but a set has {LARGEST_SET} at most.")
    return [INSTANCE_SETS[name] + offset for offset in range(count)]
