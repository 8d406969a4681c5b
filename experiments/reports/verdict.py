"""Verdict of a comparison in words, made from the numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterable

from experiments.records.comparison import JUDGED_BY, Comparison, ControllerResult
from experiments.reports.words import basis_sentence, percent, points, rounds_text, targets_text
from experiments.statistics.resampling import MINIMUM_PAIRS, Scores, paired_difference
from experiments.statistics.summary import Row, default_baseline, summarise

ENOUGH_TRAININGS = 5
"""Fewer trainings leave the interval too narrow: resampling n of them sees (n − 1)/n of their variance."""


def sample_words(comparison: Comparison, row: Row) -> str:
    """Count the runs that a row rests on, as `20 seeds` or `5 training seeds on 3 instances with 60 seeds in all`."""
    several = len(comparison.instances)
    seeds = f"{row.pairs} seed{'s' * (row.pairs > 1)}"
    if several > 1:
        seeds = f"{several} instances with {row.pairs} seeds in all"
    return f"{row.trainings} training seeds on {seeds}" if row.trainings > 1 else seeds


def training_words(rows: Iterable[Row]) -> list[str]:
    """State for learned controllers how much of the variation between trainings their intervals contain."""
    by_count: dict[int, list[str]] = {}
    for row in rows:
        if row.learned and row.trainings < ENOUGH_TRAININGS:
            by_count.setdefault(row.trainings, []).append(row.label)
    few = "{} training seeds, so few that the interval is too narrow"
    one = "1 training seed: the interval does not contain the variation between trainings"
    return [
        f"{', '.join(labels)}: {one if count == 1 else few.format(count)}."
        for count, labels in sorted(by_count.items())
    ]


def verdict(comparison: Comparison, baseline_name: str | None = None) -> str:
    """Write the verdict in one paragraph; rows at unequal ε take no part."""
    return " ".join(verdict_parts(comparison, baseline_name))


def verdict_parts(comparison: Comparison, baseline_name: str | None = None) -> list[str]:
    """Write the sentences of the verdict, the winner's first."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    rows = summarise(comparison, baseline.name)
    equal = [row for row in rows if not row.unequal]
    parts = [f"{row.label} is left out of this verdict: it {row.budget_note}." for row in rows if row.unequal]
    if equal:
        parts = [*_winner(comparison, equal), *_learned(rows, baseline), *training_words(rows), *parts]
    else:
        parts.insert(0, "No controller kept to the ε target, so nothing can be compared.")
    told = [*parts, *_cost(rows), *_tuned_here(comparison), *_diverged(rows), basis_sentence(comparison)]
    return [part for part in told if part]


def _winner(comparison: Comparison, rows: list[Row]) -> list[str]:
    top = max(row.judged.value for row in rows)
    best = [row for row in rows if math.isclose(row.judged.value, top, abs_tol=1e-9)]
    which = JUDGED_BY[comparison.judged_by]
    first = best[0]
    several = first.pairs > 1
    value = f"{percent(top)} %" + (
        f" (95 % interval {percent(first.judged.interval.low)} to {percent(first.judged.interval.high)}, "
        f"{sample_words(comparison, first)})"
        if several and len(best) == 1
        else ""
    )
    if len(rows) == 1:
        parts = [
            f"Only {first.label} was run at this ε, so there is nothing to compare: {value} final {which} accuracy."
        ]
        return parts if several else [*parts, "One seed: no interval."]
    who = f"{_names(best)} {'has' if len(best) == 1 else 'share'} the highest final {which} accuracy"
    measure = "interquartile mean " if several else ""
    budget = "no privacy limit" if set(comparison.targets.values()) == {math.inf} else targets_text(comparison)
    parts = [f"{who} at {budget}: {measure}{value}."]
    if not several:
        return [*parts, "One seed: no interval, so this is no evidence that any controller is better than another."]
    units, noun = (len(comparison.instances), "drawn instances") if comparison.drawn else (first.pairs, "seeds")
    if units < MINIMUM_PAIRS:
        return [
            *parts,
            f"{units} {noun} are too few to call any difference significant (at least {MINIMUM_PAIRS}).",
        ]
    return parts + _others(comparison, first, [row for row in rows if row is not first])


def _others(comparison: Comparison, best: Row, others: list[Row]) -> list[str]:
    """Compare the others with the best on the same seeds."""
    metric = comparison.judged_by
    lead = Scores.of(comparison.controller(best.name), metric, comparison.drawn)
    found = [
        (row, paired_difference(lead, Scores.of(comparison.controller(row.name), metric, comparison.drawn)))
        for row in others
    ]
    texts = {sign: ", ".join(f"{row.label} ({points(d)})" for row, d in found if d.sign == sign) for sign in (1, 0, -1)}
    parts = []
    if texts[1]:
        parts.append(f"On the same seeds {best.label} is ahead, in points with 95 % interval, of {texts[1]}.")
    if texts[0]:
        parts.append(
            f"No significant difference from {best.label} (the interval of the lead contains zero): {texts[0]}."
        )
    if texts[-1]:
        parts.append(f"In the plain mean over pairs, though, {best.label} is behind {texts[-1]}.")
    return parts


def _learned(rows: list[Row], baseline: ControllerResult) -> list[str]:
    """State for each learned controller if it beats the baseline."""
    blocked = any(row.unequal for row in rows if row.name == baseline.name)
    parts = []
    for row in rows:
        if not row.learned or row.difference is None or row.improvement is None or row.unequal or blocked:
            continue
        better = (
            f"{points(row.difference)} points; ahead on {100 * row.improvement.value:.0f} % of the seeds, ties half"
        )
        if row.difference.is_small:
            fact = f"against {baseline.label} stands at {better}: too few runs to say whether it beats it"
        else:
            words = {1: "beats", 0: "shows no significant difference from", -1: "loses to"}[row.difference.sign]
            fact = f"{words} {baseline.label} ({better})"
        parts.append(f"{row.label}, which is learned, {fact}.")
    return parts


def _cost(rows: list[Row]) -> list[str]:
    costs = [
        f"{row.label} ({rounds_text(count)} for {kind})"
        for row in rows
        for count, kind in ((row.training_rounds, "training"), (row.search_rounds, "search"))
        if count != 0
    ]
    others = "; none for the others" if any(row.training_rounds == row.search_rounds == 0 for row in rows) else ""
    return [f"Rounds spent beforehand: {', '.join(costs)}{others}."] if costs else []


def _tuned_here(comparison: Comparison) -> list[str]:
    """Name the controllers that have met the clients they are judged on."""
    tuned = [controller for controller in comparison.controllers if comparison.tuned_here(controller)]
    if not tuned:
        return []
    populations = " and ".join(dict.fromkeys(controller.tuned_population for controller in tuned))
    rounds = rounds_text(*(controller.rounds_before for controller in tuned))
    return [
        f"Trained or tuned on {populations} clients, compared on {comparison.population} clients: "
        f"{', '.join(controller.label for controller in tuned)}; ε does not contain these rounds ({rounds})."
    ]


def _diverged(rows: list[Row]) -> list[str]:
    parts = [
        f"{row.label} on {row.diverged} of {row.runs} {'seeds' if row.runs == row.pairs else 'runs'}"
        for row in rows
        if row.diverged
    ]
    return [f"Diverged: {', '.join(parts)}."] if parts else []


def _names(rows: list[Row]) -> str:
    labels = [row.label for row in rows]
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
