"""Accuracy sections of a comparison's report: tables of means, paired differences, instances and regret."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.records.comparison import JUDGED_BY, Comparison
from experiments.reports.pages import Section
from experiments.reports.tables import Table
from experiments.reports.words import NONE, epsilons_text, estimate_text, points, signed
from experiments.statistics.resampling import Scores, estimate
from experiments.statistics.summary import Regret, Row


def accuracy_section(rows: Sequence[Row]) -> Section:
    """Write the final accuracies, and notes on controllers that did not spend exactly the target."""
    interval = " [95 % interval]" if rows[0].pairs > 1 else "; one seed has no interval"
    words = f"Interquartile mean over runs{interval}."
    if rows[0].judged_by != "global_accuracy":
        words += (
            " The method makes models of the clients' own, so the personal ones decide. The global model is the "
            "server's, without what clients keep to themselves."
        )
    return Section("Final accuracy", (words, _accuracy_table(rows), *_budget_flags(rows)))


def difference_section(rows: Sequence[Row], baseline: str) -> Section:
    """Write the paired differences of each controller to the baseline, which is named by its label."""
    text = (
        f"Per seed, controller minus {baseline}, in percentage points [95 % interval]; above zero is better than "
        f"{baseline}. P(better): on which share of the seeds it is ahead, ties counted half."
    )
    return Section("Paired differences", (text, _difference_table(rows)))


def instance_section(comparison: Comparison, rows: Sequence[Row]) -> Section:
    """Write the accuracy on each instance."""
    which = JUDGED_BY[comparison.judged_by]
    seeds = len(comparison.controllers[0].by_pair()) // len(comparison.played)
    text = (
        f"Final {which} accuracy in %, interquartile mean [95 % interval], in each setting by itself, on {seeds} "
        f"seed{'s' * (seeds > 1)} of its own."
    )
    return Section("Each instance", (text, _instance_table(comparison, rows)))


def regret_section(comparison: Comparison, rows: Sequence[Row]) -> Section:
    """Write the regret of each controller to the best of others, chosen afterwards."""
    return Section("Regret", (*_regret_words(comparison), *_regret_tables(rows)))


def name_cell(row: Row) -> str:
    """Label a controller in a table, with a flag where its ε makes it incomparable."""
    return row.label + (" (unequal ε)" if row.unequal else "")


def spent_cell(row: Row) -> str:
    """Write the mean ε for each target; targets are never averaged."""
    return epsilons_text([(spent.target, spent.mean) for spent in row.spent])


def _accuracy_table(rows: Sequence[Row]) -> Table:
    learned = any(row.trainings > 1 for row in rows)
    headers = ("Controller", *(("Trainings",) * learned), "Global model, %", "Personal models, %", "ε spent", "Seeds")
    lines = tuple(
        (
            name_cell(row),
            *((str(row.trainings) if row.learned else NONE,) * learned),
            estimate_text(row.global_accuracy, row.pairs > 1),
            estimate_text(row.personal_accuracy, row.pairs > 1),
            spent_cell(row),
            str(row.pairs),
            f"{row.diverged} of {row.runs}" if row.diverged else "0",
        )
        for row in rows
    )
    return Table((*headers, "Diverged"), lines)


def _budget_flags(rows: Sequence[Row]) -> list[str]:
    flagged = [f"Unequal privacy: {row.label} {row.budget_note}; not comparable." for row in rows if row.unequal]
    stated = [f"{row.label} {row.budget_note}." for row in rows if row.budget_note and not row.unequal]
    return [*flagged, *stated]


def _difference_table(rows: Sequence[Row]) -> Table:
    headers = ("Controller", "Global model, points", "Personal models, points", "P(better)", "Pairs")
    lines = tuple(
        (
            name_cell(row),
            points(row.global_difference),
            points(row.personal_difference),
            _improvement_text(row),
            str(row.difference.pairs),
        )
        for row in rows
        if row.difference and row.global_difference and row.personal_difference and row.improvement is not None
    )
    return Table(headers, lines)


def _improvement_text(row: Row) -> str:
    """Write the probability of improvement with its interval."""
    if row.improvement is None:
        return NONE
    low, high = row.improvement.interval
    return f"{row.improvement.value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if row.pairs > 1 else "")


def _instance_table(comparison: Comparison, rows: Sequence[Row]) -> Table:
    scores = [Scores.of(controller, comparison.judged_by, comparison.drawn) for controller in comparison.controllers]
    lines = []
    for instance in comparison.played:
        here = [one.on(instance.name) for one in scores]
        lines.append((instance.name, *(estimate_text(estimate(one), len(one.pairs) > 1) for one in here)))
    return Table(("Instance", *(name_cell(row) for row in rows)), tuple(lines))


# --- Regret -------------------------------------------------------------------------------------------------------

_HINDSIGHT, _TUNED = "best fixed clip norm in hindsight", "best of the tuned controllers"


def _regret_words(comparison: Comparison) -> list[str]:
    chosen = "chosen for each instance by its mean" if len(comparison.instances) > 1 else "chosen by its mean"
    words = [
        f"How far a controller stays behind the best of some others, {chosen}, in points [95 % interval, the choice "
        "taken as given]; below zero it is ahead of it."
    ]
    if comparison.hindsight:
        words.append(
            f"Hindsight: the {len(comparison.hindsight)} clip norms were played on the held-out runs themselves, and "
            "the best was chosen by what it reached there. No controller could have known it; on few seeds the best of "
            "many also looks better than it is."
        )
    return words


def _regret_tables(rows: Sequence[Row]) -> list[Table]:
    """Tabulate regrets: a column for each kind of best, or with several instances a table for each kind."""
    kinds = {_HINDSIGHT: [row.hindsight_regret for row in rows], _TUNED: [row.tuned_regret for row in rows]}
    kinds = {title: found for title, found in kinds.items() if found[0]}
    if all(len(found[0]) == 1 for found in kinds.values()):
        headers = [f"Behind the {title}: {found[0][0].best}" for title, found in kinds.items()]
        lines = [
            (name_cell(row), *(points(found[place][0].behind) for found in kinds.values()))
            for place, row in enumerate(rows)
        ]
        return [Table(("Controller", *headers), tuple(lines))]
    return [_regrets_by_instance(title, rows, found) for title, found in kinds.items()]


def _regrets_by_instance(title: str, rows: Sequence[Row], found: Sequence[tuple[Regret, ...]]) -> Table:
    lines = [
        (one.instance, one.best, *(points(line[place].behind) for line in found)) for place, one in enumerate(found[0])
    ]
    means = ("Mean over instances", "", *(_mean_text(line) for line in found))
    worst = ("Worst instance", "", *(signed(max(one.behind.mean for one in line)) for line in found))
    headers = ("Instance", "Best there", *(name_cell(row) for row in rows))
    return Table(headers, (*lines, means, worst), words=("Best there",), title=f"Behind the {title}")


def _mean_text(found: tuple[Regret, ...]) -> str:
    return signed(math.fsum(one.behind.mean for one in found) / len(found))
