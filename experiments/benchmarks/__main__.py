"""`python -m experiments.benchmarks`: every ratio from this one run, on one core."""

from __future__ import annotations

from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.environments import ROWS, step_times
from experiments.benchmarks.isolation import alone
from experiments.benchmarks.local_training import CASES, measure
from experiments.benchmarks.mechanism_costs import CLIENTS, mechanism_costs
from experiments.benchmarks.method_costs import BASE, longest_ratio, method_costs
from experiments.benchmarks.privacy_prices import print_round_cost
from experiments.benchmarks.rounds import rounds_per_second
from fl_core.data.datasets import dataset_available
from fl_core.recipes.catalog import METHODS
from fl_core.run.config import FederationConfig


def main() -> None:
    """Print the tables."""
    console = Console(width=100)
    table = Table(title="Local training, 5 steps of 16, against the plain loop", box=box.SIMPLE_HEAD)
    for heading in ("case", "clients", "plain loop", "vectorized", "sequential", "best"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in CASES:
        seconds = alone(measure, case)
        ratios = [seconds["plain"] / seconds[kind] for kind in ("vectorized", "sequential")]
        cells = [f"{ratio:.2f}x" for ratio in (*ratios, max(ratios))]
        table.add_row(case.title, str(case.clients), f"{1000 * seconds['plain']:.0f} ms", *cells)
    console.print(table)

    config = FederationConfig(model="cnn2", clients=20, local_steps=5, rounds=100_000)
    table = Table(title="Rounds per second, 8x8 digits, 20 clients x 5 steps of 16, CNN", box=box.SIMPLE_HEAD)
    for heading in ("executor", "with evaluation", "without"):
        table.add_column(heading, justify="left" if heading == "executor" else "right")
    for executor in ("vectorized", "sequential"):
        chosen = replace(config, executor=executor)
        speeds = [alone(rounds_per_second, chosen, 1, evaluate) for evaluate in (True, False)]
        table.add_row(executor, *(f"{speed:.1f}" for speed in speeds))
    console.print(table)

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
    _print_mechanism_costs(console)
    _print_method_costs(console)


def _print_mechanism_costs(console: Console) -> None:
    """The cost of clip, sum and noise for models of several sizes."""
    title = f"Clip, sum and noise of a round of {CLIENTS} clients, milliseconds"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for heading in ("parameters", "clip", "sum", "noise", "float32 normals"):
        table.add_column(heading, justify="right")
    for cost in alone(mechanism_costs):
        times = (cost.clip, cost.total, cost.noise, cost.single_precision)
        table.add_row(f"{cost.size:,}", *(f"{value:.3g}" for value in times))
    console.print(table)


def _print_method_costs(console: Console) -> None:
    """The cost of every method's round in rounds of dp-fedavg, with its passes and the ratio to stay under."""
    table = Table(title="A round of each method, in rounds of dp-fedavg (1 = the same cost)", box=box.SIMPLE_HEAD)
    cases = (("vectorized", "cnn2", "digits", 20, 1.0), ("sequential", "lenet", "fashion-mnist", 500, 0.01))
    present = [case for case in cases if dataset_available(case[2])]
    for heading in ("method", "gradient passes per step", *(f"{case[0]}, {case[1]}" for case in present), "limit"):
        table.add_column(heading, justify="left" if heading[0] in "mg" else "right")
    costs = [alone(method_costs, *case) for case in present]
    for name, recipe in METHODS.items():
        ratios = [f"{seconds[name] / seconds[BASE]:.2f}" for seconds in costs]
        table.add_row(name, recipe.gradient_passes, *ratios, f"{longest_ratio(name):.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
