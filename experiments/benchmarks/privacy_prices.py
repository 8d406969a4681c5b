"""`python -m experiments.benchmarks.privacy_prices`: our accountants on the oracle cases, and the price of adaptivity.

Reads `tests/oracles/accounting.json` of a source tree; the price compares the noise that a filter asks for, which holds
for noise chosen adaptively, with the noise that PLD asks for, which holds for noise fixed in advance.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.reports.tables import Table
from fl_core.base.errors import InputError
from fl_core.privacy import accounting
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.releases import Release
from fl_core.run.basis import basis_text

ORACLE = Path(__file__).parents[2] / "tests" / "oracles" / "accounting.json"
PUBLISHED = {"rdp": "rdp_opacus", "pld": "pld", "gdp": "exact_gdp", "prv": "prv_opacus"}
"""Accountant -> its name in the oracle."""

DELTA = 1e-5
EPSILONS, RATES, ROUNDS = (1.0, 2.0, 4.0, 8.0), (1.0, 0.1, 0.01), (40, 100, 1000)
LIMIT = 0.11
"""Highest price allowed at a sampling rate below 1."""


def ours(case: Mapping[str, Any], accountant: str) -> float | None:
    """Compute our ε of an oracle case; None where the accountant refuses it."""
    segments = [(sigma, q, steps) for sigma, q, steps in case["segments_sigma_q_steps"]]
    try:
        return accounting.epsilon(segments, case["delta"], accountant)
    except InputError:
        return None


def adaptivity_price(epsilon: float, rate: float, rounds: int, delta: float = DELTA) -> tuple[float, float]:
    """Compute the noise multipliers of the uniform schedule by the ledger's filter, and fixed in advance by PLD."""
    by_filter = Ledger(epsilon, delta, rate, rounds).uniform_noise_multiplier
    return by_filter, accounting.noise_multiplier_for(epsilon, delta, rate, rounds, "gdp" if rate == 1 else "pld")


def round_cost(rate: float, rounds: int = 1000) -> dict[str, float]:
    """Time a ledger with another noise multiplier in every round: milliseconds per round of charge, ε and state."""
    ledger = Ledger(8.0, DELTA, rate, rounds)
    sigma, spent = 3 * ledger.uniform_noise_multiplier, dict.fromkeys(("charge", "epsilon", "state"), 0.0)
    for index in range(rounds):
        releases = [Release("update", sigma + 1e-3 * index), Release("clip-bit", 3 * sigma)]
        calls: dict[str, Callable[[], object]] = {
            "charge": partial(ledger.charge, index, releases),
            "epsilon": ledger.epsilon_spent,
            "state": ledger.state_dict,
        }
        for name, call in calls.items():
            start = time.process_time()
            call()
            spent[name] += time.process_time() - start
    return {name: 1000 * value / rounds for name, value in spent.items()}


def cases_table() -> Table:
    """Tabulate ε by each accountant, ours beside the oracle's."""
    rows = []
    for name, case in json.loads(ORACLE.read_text())["cases"].items():
        cells = []
        for accountant, key in PUBLISHED.items():
            values = (ours(case, accountant), case["epsilon"].get(key))
            cells.append("-" if None in values else "/".join(f"{value:.5g}" for value in values))
        rows.append((name, f"{case['delta']:g}", *cells))
    title = "Accountants on the oracle cases: ε, ours / oracle's"
    caption = f"ε for {basis_text('add-remove', 'central')}, but for Poisson sampling where a case has it"
    return Table(("case", "delta", *PUBLISHED), tuple(rows), title=title, caption=caption)


def prices_table() -> tuple[Table, float]:
    """Tabulate the price of adaptivity on the grid; returns the highest below rate 1, too."""
    rows, worst = [], 0.0
    for rate, rounds, epsilon in itertools.product(RATES, ROUNDS, EPSILONS):
        by_filter, by_pld = adaptivity_price(epsilon, rate, rounds)
        price = round(by_filter / by_pld - 1, 5) + 0.0  # the two are rounded up by 1e-6
        worst = max(worst, price if rate < 1 else 0.0)
        mark = " *" if price > LIMIT else ""
        noise = (f"{by_filter:.5g}", f"{by_pld:.5g}")
        rows.append((f"{rate:g}", str(rounds), f"{epsilon:g}", *noise, f"{price:.1%}{mark}"))
    headers = ("q", "T", "epsilon", "σ by the filter", "σ by PLD", "price")
    caption = "; or ".join(f"epsilon for {basis_text('add-remove', 'central', rate)}" for rate in RATES)
    title = f"Price of adaptivity, uniform schedule, delta {DELTA:g}"
    return Table(headers, tuple(rows), title=title, caption=caption), worst


def main() -> None:
    """Print the tables."""
    console = Console(width=100)
    console.print(cases_table().terminal())
    table, worst = prices_table()
    console.print(table.terminal())
    console.print(f"Highest price below sampling rate 1: {worst:.1%}; a star marks what is above {LIMIT:.0%}.")
    for rate in (1.0, 0.1):
        print_round_cost(console, rate)


def print_round_cost(console: Console, rate: float) -> None:
    """Print one line: the ledger's milliseconds per round."""
    cost = round_cost(rate)
    parts = ", ".join(f"{name} {value:.3f}" for name, value in cost.items())
    total = f"{sum(cost.values()):.3f} ms a round ({parts}); limit 1 ms."
    console.print(f"Ledger, 1,000 rounds of distinct σ at q = {rate:g}: {total}")


if __name__ == "__main__":
    main()
