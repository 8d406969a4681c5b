"""The report of a comparison: one page for people (Markdown and self-contained HTML), JSON and CSV for programs."""

from __future__ import annotations

import math
from pathlib import Path

import rich.box
import rich.markup
import rich.table

from experiments import figures
from experiments.costs import search_accountant
from experiments.pages import Code, Picture, Section, Table, html, markdown, summary_line
from experiments.resampling import Scores, estimate
from experiments.results import JUDGED_BY, Comparison, ControllerResult
from experiments.statistics import Regret, Row, default_baseline, statistics_record, summarise
from experiments.tables import csv_text
from experiments.verdict import verdict
from experiments.words import delta_text, epsilon_text, estimate_text, points, signed, targets_text
from fl_core.files import write_bytes, write_text

TRUST = {
    "central": "The server is trusted: it sees each client's clipped update and adds the noise to their sum. ε holds "
    "against anyone who sees the models that the server releases.",
    "distributed": "Each client adds its share of the noise. ε holds against a server that sees only the sum of the "
    "updates (secure aggregation); a server that sees single uploads would learn far more than ε says.",
    "local": "No one is trusted: each client adds the whole noise to its own update. ε holds against a server that "
    "sees every upload. It also sees who takes part: what is hidden is a client's data, not its participation.",
}
"""Placement of the noise -> who trusts whom."""

_NONE = "–"


def write_report(comparison: Comparison, folder: Path, baseline_name: str | None = None) -> dict[str, Path]:
    """Write report.md, report.html, overview.png, comparison.json and comparison.csv.

    Args:
        comparison: what was measured.
        folder: made if it does not exist.
        baseline_name: the controller that differences are taken against; by default best-fixed.

    Returns:
        File name -> path.

    Raises:
        InputError: unknown baseline, controllers on different seeds, or the files cannot be written.
    """
    sections = contents(comparison, baseline_name)
    texts = {
        "report.md": markdown(comparison, sections),
        "report.html": html(comparison, sections),
        "comparison.csv": csv_text(comparison, baseline_name),
    }
    paths = {name: folder / name for name in ("report.md", "report.html", "comparison.json", "comparison.csv")}
    comparison.write(paths["comparison.json"], statistics_record(comparison, baseline_name))
    for name, text in texts.items():
        write_text(paths[name], text)
    paths["overview.png"] = folder / "overview.png"
    write_bytes(paths["overview.png"], figures.figure_png(figures.overview_figure(comparison)))
    return paths


def contents(comparison: Comparison, baseline_name: str | None = None) -> list[Section]:
    """The report's sections, the same for every format."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    rows = summarise(comparison, baseline.name)
    sections = [
        Section("Verdict", (verdict(comparison, baseline.name),)),
        Section("Final accuracy", (_accuracy_table(rows), *_budget_flags(rows))),
    ]
    if len(rows) > 1:
        text = f"Per seed, controller minus {baseline.label}; above zero is better than {baseline.label}."
        sections.append(Section("Paired differences", (text, _difference_table(rows))))
    if len(comparison.instances) > 1:
        sections.append(Section("Each instance", (_instance_words(comparison), _instance_table(comparison, rows))))
    if rows[0].hindsight_regret or rows[0].tuned_regret:
        sections.append(Section("Regret", (*_regret_words(comparison), *_regret_tables(rows))))
    return [
        *sections,
        Section("Figures", _PICTURES),
        Section("Privacy", (*_privacy_words(comparison), _privacy_table(comparison, rows), *_signal_words(comparison))),
        Section("Cost of training and search", (*_cost_words(comparison), _cost_table(comparison, rows))),
        Section("How the figures are made", (_METHOD,)),
        Section("Setting", (_setting(comparison),)),
        Section("Command", (Code(comparison.command),)),
    ]


_BAND = "median over runs, band from 10 % to 90 %."
_PICTURES = (
    Picture(figures.accuracy_figure, "Final accuracy: interquartile mean, 95 % interval, each run as a faint dot."),
    Picture(figures.profile_figure, "Performance profiles: share of runs above each accuracy, with a 95 % band."),
    Picture(figures.budget_figure, f"Budget: {_BAND}"),
    Picture(figures.control_figure, f"What the controllers decided: {_BAND}"),
    Picture(figures.learning_figure, f"Learning curves after the steep start: {_BAND}"),
)

_METHOD = (
    "Accuracies are interquartile means over runs: a quarter of the runs, rounded down, is cut at each end. Intervals "
    "are 95 % percentile bootstraps (2,000 resamples): trainings of a controller are resampled as a whole, and seeds "
    "within their instance. Controllers meet the same partition, cohorts, batches and noise on a seed, so differences "
    "are means over pairs. P(better) is the probability that a controller is ahead on a seed, ties counted half. The "
    "intervals are not corrected for the number of controllers. All numbers are in comparison.json, and every run is a "
    "line of comparison.csv."
)


def _accuracy_table(rows: list[Row]) -> Table:
    learned = any(row.trainings > 1 for row in rows)
    headers = ("Controller", *(("Trainings",) * learned), "Seeds", "Global model, %", "Personal models, %", "ε spent")
    lines = tuple(
        (
            _name(row),
            *((str(row.trainings) if row.learned else _NONE,) * learned),
            str(row.pairs),
            _global_cell(row),
            estimate_text(row.personal_accuracy, row.pairs > 1),
            _spent_text(row),
            f"{row.diverged} of {row.runs}" if row.diverged else "0",
        )
        for row in rows
    )
    return Table((*headers, "Diverged"), lines)


def _name(row: Row) -> str:
    return row.label + (" (unequal ε)" if row.unequal else "")


def _spent_text(row: Row) -> str:
    """Mean ε for each target; they are never averaged over."""
    return ", ".join(epsilon_text(spent.mean) for spent in row.spent)


def _global_cell(row: Row) -> str:
    """The global accuracy, or a dash where the server's model lacks a part that stays on the clients."""
    return estimate_text(row.global_accuracy, row.pairs > 1) if row.judged_by == "global_accuracy" else _NONE


def _difference_table(rows: list[Row]) -> Table:
    headers = ("Controller", "Global model, points", "Personal models, points", "P(better)", "Pairs")
    lines = tuple(
        (
            _name(row),
            points(row.difference) if row.judged_by == "global_accuracy" else _NONE,
            points(row.personal_difference),
            _improvement_text(row),
            str(row.difference.pairs),
        )
        for row in rows
        if row.difference and row.personal_difference and row.improvement is not None
    )
    return Table(headers, lines)


def _improvement_text(row: Row) -> str:
    """Probability of improvement with its interval."""
    if row.improvement is None:
        return _NONE
    low, high = row.improvement.interval
    return f"{row.improvement.value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if row.pairs > 1 else "")


def _instance_words(comparison: Comparison) -> str:
    which = JUDGED_BY[comparison.judged_by]
    seeds = len(comparison.controllers[0].by_pair()) // len(comparison.instances)
    return (
        f"Final {which} accuracy in %, interquartile mean [95 % interval], in each setting by itself, on {seeds} seeds "
        "of its own."
    )


def _instance_table(comparison: Comparison, rows: list[Row]) -> Table:
    scores = [Scores.of(controller, comparison.judged_by) for controller in comparison.controllers]
    lines = []
    for instance in comparison.instances:
        here = [one.on(instance.name) for one in scores]
        cells = [estimate_text(estimate(one), len(one.pairs) > 1) for one in here]
        lines.append((instance.name, epsilon_text(instance.epsilon), *cells))
    return Table(("Instance", "ε", *(_name(row) for row in rows)), tuple(lines))


def _regret_words(comparison: Comparison) -> list[str]:
    words = [
        "How far a controller stays behind the best of some others, chosen for each instance by its mean, in points "
        "[95 % interval, the choice taken as given]; below zero it is ahead of it."
    ]
    if comparison.hindsight:
        words.append(
            f"Hindsight: the {len(comparison.hindsight)} clip norms were played on the held-out runs themselves, and "
            "the best was chosen by what it reached there. No controller could have known it; on few seeds the best of "
            "many also looks better than it is."
        )
    return words


def _regret_tables(rows: list[Row]) -> list[Table]:
    """One table, or one for each instance's best where there are several instances."""
    kinds = [
        ("Best fixed clip in hindsight", [row.hindsight_regret for row in rows]),
        ("Best of the tuned controllers", [row.tuned_regret for row in rows]),
    ]
    tables = []
    for title, found in kinds:
        if not found[0]:
            continue
        cells = [[points(one.behind) for one in line] for line in found]
        if len(found[0]) == 1:
            headers = ("Behind", f"{title}: {found[0][0].best}")
            tables.append(Table(headers, tuple((_name(r), line[0]) for r, line in zip(rows, cells, strict=True))))
            continue
        lines = [(f"{one.instance}: {one.best}", *(line[i] for line in cells)) for i, one in enumerate(found[0])]
        means = ("Mean over instances", *(_mean_text(line) for line in found))
        worst = ("Worst instance", *(signed(max(one.behind.mean for one in line)) for line in found))
        tables.append(Table((title, *(_name(row) for row in rows)), (*lines, means, worst)))
    return tables


def _mean_text(found: tuple[Regret, ...]) -> str:
    return signed(math.fsum(one.behind.mean for one in found) / len(found))


def _budget_flags(rows: list[Row]) -> list[str]:
    """What is to be said about controllers that did not spend exactly the target."""
    flagged = [f"Unequal privacy: {row.label} {row.budget_note}; not comparable." for row in rows if row.unequal]
    stated = [f"{row.label} {row.budget_note}." for row in rows if row.budget_note and not row.unequal]
    return [*flagged, *stated]


def _guarantee(comparison: Comparison) -> str:
    if len(set(comparison.targets.values())) == 1:
        return f"(ε, δ) = ({comparison.epsilon:g}, {delta_text(comparison.delta)})"
    return f"In each instance its own ε ({targets_text(comparison)}) at δ = {delta_text(comparison.delta)}"


def _privacy_words(comparison: Comparison) -> list[str]:
    if not any(map(math.isfinite, comparison.targets.values())):
        return ["This comparison has no privacy limit (ε is infinite): nothing is promised to any client."]
    trust = TRUST.get(comparison.placement, f"Placement of the noise: {comparison.placement}.")
    unit = (
        f"{_guarantee(comparison)} protects a whole client, that is all of its data, under add/remove adjacency, "
        f"counted by {comparison.accountant}."
    )
    joint = "A client's personal model never leaves it, so personal accuracy is covered in the joint (billboard) sense."
    claim = (
        "What is promised is ε by the ledger, which holds however the controller chose. ε by PLD is recomputed from "
        "the noise that was used, as a check: it must not be larger, and is no promise where the noise was chosen "
        "during the run."
    )
    if comparison.guarantee == "as-published":
        given = "; ".join(comparison.uncovered) or "nothing"
        unit = (
            f"As published: ε = {comparison.epsilon:g} at δ = {delta_text(comparison.delta)} is what the paper's own "
            f"accounting claims ({comparison.accountant}), not what is certified. Uncovered: {given}."
        )
        claim = "ε by PLD is what the noise on the updates really certifies, whatever else is uncovered."
    alone = (
        "Each ε holds for one run published by itself. The runs compared here share their seeds, and with them their "
        "noise, so that they can be paired: do not publish two of them, and deploy with a seed that nobody knows."
    )
    return [unit, trust, joint, claim, alone]


def _privacy_table(comparison: Comparison, rows: list[Row]) -> Table:
    counted = "claimed" if comparison.guarantee == "as-published" else "by ledger"
    headers = ("Controller", "Signals", "Classes", "ε target", f"ε {counted}, mean", "largest", "ε by PLD, largest")
    lines = tuple(
        (
            row.label,
            controller.signals,
            ", ".join(controller.signal_classes) or "none",
            *map(epsilon_text, (spent.target, spent.mean, spent.largest, spent.largest_pld)),
        )
        for row, controller in zip(rows, comparison.controllers, strict=True)
        for spent in row.spent
    )
    return Table(headers, lines, words=("Signals", "Classes"))


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


def _cost_words(comparison: Comparison) -> list[str]:
    total = sum(controller.training_rounds + controller.search_rounds for controller in comparison.controllers)
    if not total:
        return ["No controller was trained or searched for."]
    words = [
        "Training and search are not in the ε above. Each of these rounds is a release about the clients it ran on: "
        "done on private clients, they cost privacy themselves, and their loss adds up over all runs. They are free "
        "only on clients whose data is public, simulated or unrelated to the clients protected here.",
        _composition_words(comparison),
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


def _composition_words(comparison: Comparison) -> str:
    """What the last column of the costs says."""
    return (
        f"Each whole run would spend ε = {epsilon_text(comparison.epsilon)} of the clients it ran on; all of them "
        f"together, composed by {search_accountant(comparison)}, spend the ε in the table. Several trainings of a "
        "controller count together."
    )


def _cost_table(comparison: Comparison, rows: list[Row]) -> Table:
    headers = ("Controller", "Training rounds", "Search rounds", "As whole runs", "ε of them together")
    lines = tuple(
        _cost_line(controller, row, comparison.rounds)
        for controller, row in zip(comparison.controllers, rows, strict=True)
    )
    return Table((*headers, "Trained or tuned on"), lines, words=("Trained or tuned on",))


def _cost_line(controller: ControllerResult, row: Row, rounds: int) -> tuple[str, ...]:
    total = row.training_rounds + row.search_rounds
    return (
        controller.label,
        f"{row.training_rounds:,}",
        f"{row.search_rounds:,}",
        f"{total / rounds:,.0f}" if total else "0",
        _large(row.search_epsilon) if total else "0",
        controller.tuned_on or _NONE,
    )


def _large(epsilon: float | None) -> str:
    """An ε whose decimals do not matter."""
    if epsilon is None:
        return _NONE
    return f"{epsilon:,.0f}" if 100 <= epsilon < math.inf else epsilon_text(round(epsilon, 1))


def _setting(comparison: Comparison) -> Table:
    minutes, seconds = divmod(round(comparison.wall_seconds), 60)
    lines = (
        ("Task", comparison.task),
        ("Method", comparison.method),
        ("Dataset", comparison.dataset),
        ("Clients", f"{comparison.clients:,}, population {comparison.population}"),
        ("Rounds", f"{comparison.rounds:,}"),
        ("Target", f"{targets_text(comparison)}, δ = {delta_text(comparison.delta)}"),
        ("Adjacency", "client-level, add or remove one client"),
        ("Accountant", comparison.accountant),
        ("Sampling", f"{comparison.sampling}, rate {comparison.sampling_rate:g}"),
        ("Placement of the noise", comparison.placement),
        ("Device and executor", f"{comparison.device}, {comparison.executor}"),
        ("Created", comparison.created),
        ("Time taken", f"{minutes} min {seconds} s" if minutes else f"{seconds} s"),
    )
    return Table(("What", "Value"), lines, words=("Value",))


def table(comparison: Comparison, baseline_name: str | None = None) -> rich.table.Table:
    """The result for a terminal of 100 columns."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    shown = rich.table.Table(
        title=rich.markup.escape(summary_line(comparison)),
        caption="accuracy in %: interquartile mean [95 % interval]; difference in points per seed to "
        f"{rich.markup.escape(baseline.label)}; P: share of seeds ahead of it; before: rounds of training and search",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    shown.add_column("controller", overflow="fold")
    for name in ("global", "personal", "difference", "P", "ε spent", "before"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in summarise(comparison, baseline.name):
        shown.add_row(
            rich.markup.escape(_name(row)),
            _global_cell(row).replace("[", r"\["),
            estimate_text(row.personal_accuracy, row.pairs > 1).replace("[", r"\["),
            points(row.difference).replace("[", r"\[") if row.difference else _NONE,
            _NONE if row.improvement is None else f"{row.improvement.value:.2f}",
            _spent_text(row),
            f"{row.training_rounds + row.search_rounds:,}",
        )
    return shown
