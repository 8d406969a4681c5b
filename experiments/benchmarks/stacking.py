"""`python -m experiments.benchmarks.stacking`: rounds of several rows, by the memory that stacked clients may take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console

from envs.tasks import TASKS
from experiments.benchmarks.isolation import alone
from experiments.benchmarks.peers import seconds_of
from experiments.reports.tables import Table
from fl_core.base.memory import ON_CPU
from fl_core.data.datasets import dataset_available
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

ROWS = (1, 4, 8)
LIMITS = (16, 64, ON_CPU >> 20, 512)
"""MiB; the third is what a CPU takes where nobody sets a limit."""
ROUNDS = 5
WARM_UP = 2


def stacking_costs(
    config: FederationConfig, rows: int, limits: Sequence[int] = LIMITS, rounds: int = ROUNDS
) -> dict[int, float]:
    """Measure the processor seconds of a round per row, without evaluation, by limit in MiB: medians, interleaved."""
    seconds: dict[int, list[float]] = {limit: [] for limit in limits}
    ways = {}
    for limit in limits:
        chosen = replace(config, executor="vectorized", rounds=100_000, memory_limit_mib=limit)
        ways[limit] = partial(Federation(chosen, rows).run_round, RoundPlan.constant(rows))
    for done in range(WARM_UP + rounds):
        for limit, once in ways.items():
            taken = seconds_of(once)
            if done >= WARM_UP:
                seconds[limit].append(taken / rows)
    return {limit: statistics.median(one) for limit, one in seconds.items()}


def main() -> None:
    """Print the table."""
    rows = []
    for name, task in TASKS.items():
        if dataset_available(task.federation.dataset):
            for count in ROWS:
                costs = alone(stacking_costs, task.federation, count)
                rows.append((name, str(count), *(f"{1000 * costs[limit]:.1f}" for limit in LIMITS)))
    title = "Private rounds, vectorized, processor milliseconds per row, by the MiB that stacked clients may take"
    Console(width=100).print(Table(("task", "rows", *map(str, LIMITS)), tuple(rows), title=title).terminal())


if __name__ == "__main__":
    main()
