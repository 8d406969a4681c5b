"""`python -m experiments.benchmarks.population`: a round of one cohort size, over the number of clients."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from experiments.benchmarks.isolation import alone
from experiments.reports.tables import Table
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
SAMPLES_EACH = 3
ROUNDS = 30
WARM_UP = 5


@dataclass(frozen=True)
class Cost:
    """Cost of a federation of some number of clients.

    Attributes:
        start: seconds from random images to the first round.
        round: median seconds of a round, without evaluation.
        evaluation: seconds of an evaluation.
        mebibytes: most memory that the process took.
    """

    start: float
    round: float
    evaluation: float
    mebibytes: float


def population_cost(clients: int, cohort: int, method: str, partition: str) -> Cost:
    """Measure a federation on random 8×8 images, with Poisson cohorts of `cohort` clients on average."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (SAMPLES_EACH * clients, 1, 8, 8), dtype=np.uint8)
    data = {"images": images, "labels": np.arange(len(images)) % 10}
    began = time.perf_counter()
    config = FederationConfig(
        method=method,
        dataset=data,  # type: ignore[arg-type]
        clients=clients,
        partition=partition,
        sampling_rate=cohort / clients,
        rounds=10_000,
        delta=1e-8,
    )
    federation, plan = Federation(config), RoundPlan.constant(1)
    start, seconds = time.perf_counter() - began, []
    for _ in range(WARM_UP + ROUNDS):
        began = time.perf_counter()
        federation.run_round(plan)
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    federation.evaluate()
    evaluation = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return Cost(start, statistics.median(seconds[WARM_UP:]), evaluation, peak)


def population_table(clients: tuple[int, ...], cohort: int, method: str, partition: str) -> Table:
    """Measure federations of several sizes, each in a process of its own, as ratios to the smallest."""
    costs = [alone(population_cost, number, cohort, method, partition) for number in clients]
    rows = tuple(
        (
            f"{number:,}",
            f"{cost.start:.1f}",
            f"{1000 * cost.round:.1f}",
            f"{cost.round / costs[0].round:.2f}x",
            f"{cost.evaluation:.2f}",
            f"{cost.mebibytes:,.0f}",
        )
        for number, cost in zip(clients, costs, strict=True)
    )
    headers = ("clients", "start, s", "round, ms", "of the first", "evaluation, s", "memory, MiB")
    return Table(headers, rows, title=f"{method}, mlp, cohorts of {cohort}, {partition}, {SAMPLES_EACH} samples each")


def main() -> None:
    """Print the curve over the number of clients; arguments: cohort, method, partition."""
    cohort, method, partition = (sys.argv[1:] + ["100", "dp-fedavg", "iid"][len(sys.argv) - 1 :])[:3]
    Console(width=100).print(population_table(CLIENTS, int(cohort), method, partition).terminal())


if __name__ == "__main__":
    main()
