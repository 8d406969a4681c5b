"""The report of a comparison: one page for people (Markdown and self-contained HTML), JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import rich.box
import rich.markup
import rich.table

from experiments import figures
from experiments.pages import Code, Picture, Section, Table, delta_text, epsilon_text, html, markdown, summary_line
from experiments.results import Comparison, ControllerResult
from experiments.statistics import Row, default_baseline, percent, points, summarise, verdict
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
        "comparison.csv": csv_text(comparison),
    }
    paths = {name: folder / name for name in ("report.md", "report.html", "comparison.json", "comparison.csv")}
    comparison.write(paths["comparison.json"])
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
    return [
        *sections,
        Section("Figures", _PICTURES),
        Section("Privacy", (*_privacy_words(comparison), _privacy_table(comparison, rows), *_signal_words(comparison))),
        Section("Cost of training and search", (*_cost_words(comparison), _cost_table(comparison))),
        Section("How the figures are made", (_METHOD,)),
        Section("Setting", (_setting(comparison),)),
        Section("Command", (Code(comparison.command),)),
    ]


_BAND = "median over seeds, band from 10 % to 90 %."
_PICTURES = (
    Picture(figures.accuracy_figure, "Final accuracy: interquartile mean, 95 % interval, each seed as a faint dot."),
    Picture(figures.budget_figure, f"Budget: {_BAND}"),
    Picture(figures.control_figure, f"What the controllers decided: {_BAND}"),
    Picture(figures.learning_figure, f"Learning curves after the steep start: {_BAND}"),
)

_METHOD = (
    "Accuracies are interquartile means over seeds: a quarter of the seeds, rounded down, is cut at each end. "
    "Intervals are 95 % percentile bootstraps over seeds (2,000 resamples). Controllers meet the same partition, "
    "cohorts, batches and noise on a seed, so differences are means over pairs. P(better) is the share of seeds on "
    "which a controller is ahead, ties counted half. The intervals are not corrected for the number of controllers. A "
    "learned controller is one trained policy: what another training run would have given is not in its interval."
)


def _accuracy_table(rows: list[Row]) -> Table:
    headers = ("Controller", "Seeds", "Global model, %", "Personal models, %", "ε spent", "Diverged")
    lines = tuple(
        (
            row.label + (" (unequal ε)" if row.unequal else ""),
            str(row.seeds),
            _global_cell(row),
            percent(row.personal_accuracy, row.personal_interval if row.seeds > 1 else None),
            epsilon_text(row.epsilon_mean),
            str(row.diverged),
        )
        for row in rows
    )
    return Table(headers, lines)


def _global_cell(row: Row) -> str:
    """The global accuracy, or a dash where the server's model lacks a part that stays on the clients."""
    if row.judged_by != "global_accuracy":
        return _NONE
    return percent(row.global_accuracy, row.global_interval if row.seeds > 1 else None)


def _difference_table(rows: list[Row]) -> Table:
    headers = ("Controller", "Global model, points", "Personal models, points", "P(better)", "Pairs")
    lines = tuple(
        (
            row.label + (" (unequal ε)" if row.unequal else ""),
            points(row.difference) if row.judged_by == "global_accuracy" else _NONE,
            points(row.personal_difference),
            f"{row.improvement:.2f}",
            str(row.difference.pairs),
        )
        for row in rows
        if row.difference and row.personal_difference and row.improvement is not None
    )
    return Table(headers, lines)


def _budget_flags(rows: list[Row]) -> list[str]:
    """What is to be said about controllers that did not spend exactly the target."""
    flagged = [f"Unequal privacy: {row.label} {row.budget_note}; not comparable." for row in rows if row.unequal]
    stated = [f"{row.label} {row.budget_note}." for row in rows if row.budget_note and not row.unequal]
    return [*flagged, *stated]


def _privacy_words(comparison: Comparison) -> list[str]:
    if not math.isfinite(comparison.epsilon):
        return ["This comparison has no privacy limit (ε is infinite): nothing is promised to any client."]
    trust = TRUST.get(comparison.placement, f"Placement of the noise: {comparison.placement}.")
    unit = (
        f"(ε, δ) = ({comparison.epsilon:g}, {delta_text(comparison.delta)}) protects a whole client, that is all of "
        f"its data, under add/remove adjacency, counted by {comparison.accountant}."
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
    headers = ("Controller", "Signals", "Classes", f"ε {counted}, mean", "largest", "ε by PLD, largest")
    lines = tuple(
        (
            row.label,
            controller.signals,
            ", ".join(controller.signal_classes) or "none",
            epsilon_text(row.epsilon_mean),
            epsilon_text(row.epsilon_max),
            epsilon_text(row.epsilon_pld),
        )
        for row, controller in zip(rows, comparison.controllers, strict=True)
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
    return [
        "Training and search are not in the ε above. Each of these rounds is a release about the clients it ran on: "
        "done on private clients, they would cost privacy themselves, and their loss would add up over all runs. They "
        "are free only on clients whose data is public, simulated or unrelated to the clients protected here."
    ]


def _cost_table(comparison: Comparison) -> Table:
    headers = ("Controller", "Training rounds", "Search rounds", "As whole runs", "Trained or tuned on")
    lines = tuple(_cost_line(controller, comparison.rounds) for controller in comparison.controllers)
    return Table(headers, lines, words=("Trained or tuned on",))


def _cost_line(controller: ControllerResult, rounds: int) -> tuple[str, ...]:
    total = controller.training_rounds + controller.search_rounds
    return (
        controller.label,
        f"{controller.training_rounds:,}",
        f"{controller.search_rounds:,}",
        f"{total / rounds:,.0f}" if total else "0",
        controller.tuned_on or _NONE,
    )


def _setting(comparison: Comparison) -> Table:
    minutes, seconds = divmod(round(comparison.wall_seconds), 60)
    lines = (
        ("Task", comparison.task),
        ("Method", comparison.method),
        ("Dataset", comparison.dataset),
        ("Clients", f"{comparison.clients:,}"),
        ("Rounds", f"{comparison.rounds:,}"),
        ("Target", f"ε = {epsilon_text(comparison.epsilon)}, δ = {delta_text(comparison.delta)}"),
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
            rich.markup.escape(row.label + (" (unequal ε)" if row.unequal else "")),
            _global_cell(row).replace("[", r"\["),
            percent(row.personal_accuracy, row.personal_interval if row.seeds > 1 else None).replace("[", r"\["),
            points(row.difference).replace("[", r"\[") if row.difference else _NONE,
            _NONE if row.improvement is None else f"{row.improvement:.2f}",
            epsilon_text(row.epsilon_mean),
            f"{row.training_rounds + row.search_rounds:,}",
        )
    return shown


def csv_text(comparison: Comparison) -> str:
    """One line per controller and seed; accuracies as shares, ε without limit as "inf"."""
    shared = ("task", "method", "dataset", "clients", "epsilon", "delta")
    own = ("name", "label", "signals", "training_rounds", "search_rounds")
    measured = ("seed", "global_accuracy", "personal_accuracy", "epsilon_spent", "epsilon_pld", "rounds", "diverged")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*shared, "planned_rounds", "controller", *own[1:], "signal_classes", *measured])
    for controller in comparison.controllers:
        for episode in controller.episodes:
            writer.writerow(
                [
                    *(getattr(comparison, name) for name in shared),
                    comparison.rounds,
                    *(getattr(controller, name) for name in own),
                    " ".join(controller.signal_classes),
                    *(getattr(episode, name) for name in measured),
                ]
            )
    return buffer.getvalue()
