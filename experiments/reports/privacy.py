"""Privacy sections of a comparison's report: the guarantee and whom it covers, the cost of training and search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from experiments.records.comparison import Comparison, ControllerResult, Episode
from experiments.records.costs import composition_words
from experiments.records.shown import exact_metrics, not_covered
from experiments.reports.pages import Section
from experiments.reports.tables import Table
from experiments.reports.words import (
    MOST_LISTED,
    NONE,
    delta_text,
    epsilon_text,
    rounds_text,
    share_text,
    target_share,
    targets_text,
)
from experiments.statistics.summary import Row, Spent
from fl_core.run.plan import METRICS

TRUST = {
    "central": "The server is trusted: it sees each client's clipped update and adds the noise to their sum. ε holds "
    "against anyone who sees the models that the server releases.",
    "distributed": "Each client adds its share of the noise. ε holds against a server that sees only the sum of the "
    "updates (secure aggregation); a server that sees single uploads would learn far more than ε says.",
    "local": "No one is trusted: each client adds the whole noise to its own update. ε holds against a server that "
    "sees every upload. It also sees who takes part: what is hidden is a client's data, not its participation.",
}
"""Placement of the noise -> the trust that it needs."""


def privacy_section(comparison: Comparison, rows: Sequence[Row]) -> Section:
    """Write the guarantee, the parties that it holds against, and what was spent."""
    return Section("Privacy", (*_promise(comparison), _privacy_table(comparison, rows), *_signal_words(comparison)))


def cost_section(comparison: Comparison, rows: Sequence[Row]) -> Section:
    """Write the rounds of training and search, and the ε that they would have cost."""
    made = [(c, row) for c, row in zip(comparison.controllers, rows, strict=True) if c.rounds_before != 0]
    if not made:
        return Section("Cost of training and search", ("No controller was trained or searched for.",))
    return Section("Cost of training and search", (*_cost_words(comparison), _cost_table(made), *_gaps(made)))


# --- Privacy ------------------------------------------------------------------------------------------------------


def _promise(comparison: Comparison) -> list[str]:
    if not any(map(math.isfinite, comparison.targets.values())):
        return ["This comparison has no privacy limit (ε is infinite): nothing is promised to any client."]
    trust = TRUST.get(comparison.placement, f"Placement of the noise: {comparison.placement}.")
    unit = (
        f"{_guarantee(comparison)} protects a whole client, that is all of its data, counted by its ledger "
        f"({comparison.accountant}): {comparison.basis}."
    )
    joint = (
        "A client's personal model never leaves it: joint (billboard) privacy covers the model that this client keeps. "
        f"Shown here, and covered by no ε: {'; '.join(_not_covered(comparison)) or 'nothing'}."
    )
    claim = (
        "What is promised is the target ε, however the controller chose and whenever a run stopped; ε by the ledger "
        "says how far it was spent. ε by PLD (privacy loss distributions) is recomputed from the noise that was used, "
        "as a check: it must not be larger, and is no promise where noise or end were chosen during the run."
    )
    if comparison.guarantee == "as-published":
        unit = (
            f"As published: ε = {comparison.epsilon:g} at δ = {delta_text(comparison.delta)} is what the paper's own "
            f"accounting claims ({comparison.accountant}), not what is certified."
        )
        claim = (
            "ε by PLD (privacy loss distributions) is what the noise on the updates really certifies, whatever else is "
            "uncovered."
        )
    alone = (
        "Each ε holds for one run published by itself, against those who do not know its seed: the noise is seeded, "
        "and whoever knows the seed can subtract it. The runs compared here share their seeds, and with them their "
        "noise, so that they can be paired: do not publish two of them, and deploy with --noise secret."
    )
    return [unit, trust, joint, claim, alone]


def _not_covered(comparison: Comparison) -> tuple[str, ...]:
    """List what these runs gave away without noise, and the exact figures of clients that the comparison holds."""
    episodes = [one for c in (*comparison.controllers, *comparison.hindsight) for one in c.episodes]
    written = [*(field.name for field in fields(Episode)), *(name for one in episodes for name in one.trajectory)]
    return not_covered(comparison.uncovered, exact_metrics(name for name in written if name in METRICS))


def _guarantee(comparison: Comparison) -> str:
    if len(set(comparison.targets.values())) == 1:
        return f"(ε, δ) = ({comparison.epsilon:g}, {delta_text(comparison.delta)})"
    return f"In each instance its own ε ({targets_text(comparison)}) at δ = {delta_text(comparison.delta)}"


def _privacy_table(comparison: Comparison, rows: Sequence[Row]) -> Table:
    """Tabulate ε by controller and target; many targets share a line, as parts of the target."""
    counted = "ε claimed" if comparison.guarantee == "as-published" else "ε by ledger"
    few = len(set(comparison.targets.values())) <= MOST_LISTED
    whole = (f"{counted}, mean", f"{counted}, largest", "ε by PLD, largest")
    headers = (
        "Controller",
        "Signals",
        "ε target",
        *(whole if few else (f"{counted}, of target", "ε by PLD, of target")),
    )
    lines = [
        (row.label, ", ".join(controller.signal_classes) or "none", *cells)
        for row, controller in zip(rows, comparison.controllers, strict=True)
        for cells in ([_spent_cells(one) for one in row.spent] if few else [_share_cells(comparison, row.spent)])
    ]
    return Table(headers, tuple(lines), words=("Signals",))


def _spent_cells(spent: Spent) -> tuple[str, ...]:
    return tuple(map(epsilon_text, (spent.target, spent.mean, spent.largest, spent.largest_pld)))


def _share_cells(comparison: Comparison, spent: Sequence[Spent]) -> tuple[str, ...]:
    by_ledger = [target_share(one.target, value) for one in spent for value in (one.mean, one.largest)]
    by_pld = [target_share(one.target, one.largest_pld) for one in spent]
    return targets_text(comparison).removeprefix("ε = "), share_text(by_ledger), share_text(by_pld)


def _signal_words(comparison: Comparison) -> list[str]:
    raw = [controller.label for controller in comparison.controllers if "raw" in controller.signal_classes]
    paid = [controller.label for controller in comparison.controllers if "accounted" in controller.signal_classes]
    words = []
    if raw:
        words.append(
            f"{', '.join(raw)} saw raw signals, exact figures of private clients: there ε holds only for the model "
            "updates."
        )
    if paid:
        words.append(
            f"The accounted signals of {', '.join(paid)} were released with noise and paid for out of the same ε."
        )
    return words


# --- Cost of training and search ----------------------------------------------------------------------------------


def _cost_words(comparison: Comparison) -> list[str]:
    words = [
        "Training and search are not in the ε above. Each of these rounds is a release about the clients it ran on: "
        "done on private clients, they cost privacy themselves, and their loss adds up over all runs. They are free "
        "only on clients whose data is public, simulated or unrelated to the clients protected here.",
        _composition(comparison),
    ]
    tuned = [controller for controller in comparison.controllers if controller.tuned_population]
    shared = [controller.label for controller in tuned if comparison.tuned_here(controller)]
    apart = [controller.label for controller in tuned if not comparison.tuned_here(controller)]
    if apart:
        words.append(
            f"{', '.join(apart)}: trained or tuned on clients that share no sample with the {comparison.population} "
            "clients compared on."
        )
    if shared:
        words.append(
            f"{', '.join(shared)}: trained or tuned on samples of the {comparison.population} clients compared on, so "
            "that ε is not all that these clients lose."
        )
    return words


def _composition(comparison: Comparison) -> str:
    """Explain the columns of the costs in ε, and what they leave out."""
    every = [one for controller in comparison.controllers for one in controller.releases]
    published = comparison.guarantee == "as-published"
    noise = "that the paper's accounting gives out" if published else "of its ε spent evenly"
    return (
        f"ε of one run is what each of those runs may spend; ε of all is what a client in all of them would lose at "
        f"δ = {delta_text(comparison.delta)}: the updates of every round, with the noise {noise}, composed by "
        f"{composition_words(every)}, for {comparison.basis}. Several trainings of a controller count together. Not "
        "counted are the exact accuracies by which parameters were chosen and agents rewarded; no ε holds for those."
    )


def _cost_table(made: Sequence[tuple[ControllerResult, Row]]) -> Table:
    headers = ("Controller", "Training rounds", "Search rounds", "As whole runs", "ε of one run", "ε of all")
    lines = tuple(_cost_line(controller, row) for controller, row in made)
    return Table((*headers, "Trained or tuned on"), lines, words=("Trained or tuned on",))


def _cost_line(controller: ControllerResult, row: Row) -> tuple[str, ...]:
    own = sorted({one.epsilon for one in controller.releases})
    return (
        controller.label,
        rounds_text(row.training_rounds),
        f"{row.search_rounds:,}",
        f"{sum(one.runs for one in controller.releases):,.0f}" if controller.releases else NONE,
        " to ".join(map(epsilon_text, dict.fromkeys((own[0], own[-1])))) if own else NONE,
        NONE if row.search_epsilon is None else _large(row.search_epsilon),
        controller.tuned_on or NONE,
    )


def _large(epsilon: float) -> str:
    """Write an ε whose decimals do not matter."""
    return f"{epsilon:,.0f}" if 100 <= epsilon < math.inf else epsilon_text(round(epsilon, 1))


def _gaps(made: Sequence[tuple[ControllerResult, Row]]) -> list[str]:
    """Explain the ε that are missing or infinite."""
    unknown = [row.label for _, row in made if row.search_epsilon is None]
    free = [row.label for _, row in made if row.search_epsilon == math.inf]
    words = []
    if unknown:
        words.append(f"{', '.join(unknown)}: the noise of these rounds is not known here, so their ε cannot be told.")
    if free:
        words.append(f"{', '.join(free)}: some of these rounds had no noise, so no finite ε holds for them.")
    return words
