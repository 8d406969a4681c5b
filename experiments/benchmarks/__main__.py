"""`python -m experiments.benchmarks [--compile]`: every ratio from this one run, on one core.

`--compile` adds the executor `compiled`, which takes minutes more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from experiments.benchmarks.bounds import BOUNDED, bounded_cost
from experiments.benchmarks.environments import ROWS, step_times
from experiments.benchmarks.isolation import alone
from experiments.benchmarks.local_training import CASES, EXECUTORS, measure
from experiments.benchmarks.mechanism_costs import CLIENTS, mechanism_costs
from experiments.benchmarks.method_costs import BASE, longest_ratio, method_costs
from experiments.benchmarks.peers import COMPARED, ROUNDS, RoundCost, peer_cost
from experiments.benchmarks.privacy_prices import print_round_cost
from experiments.benchmarks.rounds import rounds_per_second
from experiments.reports.tables import Table
from fl_core.data.datasets import dataset_available
from fl_core.recipes.catalog import METHODS
from fl_core.run.config import FederationConfig

SHARES = ("round, ms", "products, ms", "the rest, ms", "of the peak")
SHARES_CAPTION = "products: matrix products and convolutions; peak: a product of two large matrices in the same process"


def main() -> None:
    """Print the tables."""
    console = Console(width=100)
    kinds = (*EXECUTORS, "compiled") if "--compile" in sys.argv[1:] else EXECUTORS
    console.print(_local_training_table(kinds).terminal())
    console.print(_rounds_table().terminal())
    console.print(_peers_table("auto").terminal(wrap_numbers=True))
    if "compiled" in kinds:
        console.print(_peers_table("compiled").terminal(wrap_numbers=True))
    console.print(_bounds_table().terminal())
    demo = FederationConfig(executor="vectorized", rounds=100_000)
    single, batched = (alone(rounds_per_second, demo, runs, False) for runs in (1, 8))
    console.print(
        f"The task digits: {single:.1f} rounds/s alone, {batched:.1f} as 8 rows of one batch "
        f"({batched / single:.2f}x per environment)."
    )
    steps = alone(step_times)
    console.print(
        f"The environment of the demo, 4 rounds per step: {1000 * steps.alone:.0f} ms per step alone, "
        f"{1000 * steps.batched:.0f} per environment as {ROWS} rows of one batch ({steps.ratio:.2f}x)."
    )
    for rate in (1.0, 0.1):
        print_round_cost(console, rate)
    console.print(_mechanism_table().terminal())
    console.print(_methods_table().terminal(wrap_numbers=True))


def _local_training_table(kinds: Sequence[str]) -> Table:
    """Time local training by some executors, as speed over the plain loop."""
    rows = []
    for case in CASES:
        seconds = alone(measure, case, kinds)
        ratios = [seconds["plain"] / seconds[kind] for kind in kinds]
        cells = [f"{ratio:.2f}x" for ratio in (*ratios, max(ratios))]
        rows.append((case.title, str(case.clients), f"{1000 * seconds['plain']:.0f} ms", *cells))
    headers = ("case", "clients", "plain loop", *kinds, "best")
    return Table(headers, tuple(rows), title="Local training, 5 steps of 16, against the plain loop")


def _rounds_table() -> Table:
    """Time whole rounds by both executors, in rounds per second."""
    config = FederationConfig(model="cnn2", clients=20, local_steps=5, rounds=100_000)
    rows = []
    for executor in ("vectorized", "sequential"):
        chosen = replace(config, executor=executor)
        speeds = [alone(rounds_per_second, chosen, 1, evaluate) for evaluate in (True, False)]
        rows.append((executor, *(f"{speed:.1f}" for speed in speeds)))
    title = "Rounds per second, 8x8 digits, 20 clients x 5 steps of 16, CNN"
    return Table(("executor", "with evaluation", "without"), tuple(rows), title=title)


def _peers_table(executor: str) -> Table:
    """Time whole private rounds by an executor against pfl, with what bounds them."""
    rows = []
    for case in COMPARED:
        cost = alone(peer_cost, case, ROUNDS, executor)
        peer = "not installed" if cost.over_peer is None else f"{cost.over_peer:.2f}x"
        rows.append((case.title, *_shares(cost), peer))
    title = f"Private rounds of 10 clients x 4 steps of 16, executor {executor}"
    return Table(("case", *SHARES, "over pfl"), tuple(rows), title=title, caption=SHARES_CAPTION)


def _bounds_table() -> Table:
    """Time rounds of several rows and of two gradients per minibatch, with what bounds them."""
    rows = tuple((case.title, *_shares(alone(bounded_cost, case))) for case in BOUNDED)
    title = "Private rounds of the task digits, vectorized, without evaluation"
    return Table(("case", *SHARES), rows, title=title, caption=SHARES_CAPTION)


def _shares(cost: RoundCost) -> tuple[str, ...]:
    times = (cost.seconds, cost.products, cost.seconds - cost.products)
    return (*(f"{1000 * value:.1f}" for value in times), f"{cost.peak_share:.0%}")


def _mechanism_table() -> Table:
    """Time clip, sum and noise for models of several sizes."""
    rows = []
    for cost in alone(mechanism_costs):
        times = (cost.clip, cost.total, cost.noise, cost.single_precision)
        rows.append((f"{cost.size:,}", *(f"{value:.3g}" for value in times)))
    headers = ("parameters", "clip", "sum", "noise", "float32 normals")
    return Table(headers, tuple(rows), title=f"Clip, sum and noise of a round of {CLIENTS} clients, milliseconds")


def _methods_table() -> Table:
    """Time every method's round, in rounds of dp-fedavg, beside its gradient passes and the ratio to stay under."""
    cases = (("vectorized", "cnn2", "digits", 20, 1.0), ("sequential", "lenet", "fashion-mnist", 500, 0.01))
    present = [case for case in cases if dataset_available(case[2])]
    passes = "gradient passes per step"
    rows = []
    costs = [alone(method_costs, *case) for case in present]
    for name, recipe in METHODS.items():
        ratios = [f"{seconds[name] / seconds[BASE]:.2f}" for seconds in costs]
        rows.append((name, recipe.gradient_passes, *ratios, f"{longest_ratio(name):.1f}"))
    headers = ("method", passes, *(f"{case[0]}, {case[1]}" for case in present), "limit")
    title = "A round of each method, in rounds of dp-fedavg (1 = the same cost)"
    return Table(headers, tuple(rows), words=(passes,), title=title)


if __name__ == "__main__":
    main()
