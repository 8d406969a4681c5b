"""Report of a comparison: one page for people (Markdown and self-contained HTML), JSON and CSV for programs."""

from __future__ import annotations

from pathlib import Path

import rich.table

from experiments.records.comparison import Comparison
from experiments.reports import figures
from experiments.reports.accuracy import (
    accuracy_section,
    difference_section,
    instance_section,
    name_cell,
    regret_section,
    spent_cell,
)
from experiments.reports.comparison_csv import csv_text
from experiments.reports.drawing import figure_png
from experiments.reports.pages import Code, Section, html, markdown, summary_line
from experiments.reports.privacy import cost_section, privacy_section
from experiments.reports.tables import Table
from experiments.reports.verdict import verdict_parts
from experiments.reports.words import (
    NONE,
    delta_text,
    estimate_text,
    points,
    rounds_text,
    share_text,
    target_share,
    targets_text,
)
from experiments.statistics.summary import default_baseline, statistics_record, summarise
from fl_core.base.files import write_bytes, write_text


def write_report(comparison: Comparison, folder: Path, baseline_name: str | None = None) -> dict[str, Path]:
    """Write report.md, report.html, overview.png, comparison.json and comparison.csv.

    Args:
        comparison: the measurements.
        folder: made if it does not exist.
        baseline_name: the controller that differences are taken to; by default best-fixed.

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
    write_bytes(paths["overview.png"], figure_png(figures.overview_figure(comparison)))
    return paths


def contents(comparison: Comparison, baseline_name: str | None = None) -> list[Section]:
    """Compose the report's sections, the same for every format."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    rows = summarise(comparison, baseline.name)
    sections = [Section("Verdict", tuple(verdict_parts(comparison, baseline.name))), accuracy_section(rows)]
    if len(rows) > 1:
        sections.append(difference_section(rows, baseline.label))
    if len(comparison.played) > 1:
        sections.append(instance_section(comparison, rows))
    if rows[0].hindsight_regret or rows[0].tuned_regret:
        sections.append(regret_section(comparison, rows))
    return [
        *sections,
        Section("Figures", figures.captioned_figures(comparison)),
        privacy_section(comparison, rows),
        cost_section(comparison, rows),
        Section("How the numbers are made", (_METHOD,)),
        Section("Setting", (_setting(comparison),)),
        Section("Command", (Code(comparison.command),)),
    ]


_METHOD = (
    "Accuracies are interquartile means over runs: a quarter of the runs, rounded down, is cut at each end. Intervals "
    "are 95 % percentile bootstraps (2,000 resamples): trainings of a controller are resampled as a whole, and seeds "
    "within their instance; instances that a generator drew are resampled too, each with its seeds. Controllers meet "
    "the same partition, cohorts, batches and noise on a seed, so differences are means over pairs. P(better) is the "
    "probability that a controller is ahead on a seed, ties counted half. The intervals are not corrected for the "
    "number of controllers. All numbers are in comparison.json, and every run is a line of comparison.csv."
)


def _setting(comparison: Comparison) -> Table:
    minutes, seconds = divmod(round(comparison.wall_seconds), 60)
    lines = (
        ("Task", comparison.task),
        ("Method", comparison.method),
        ("Dataset", comparison.dataset),
        ("Clients", f"{comparison.clients:,}, population {comparison.population}"),
        ("Rounds", f"{comparison.rounds:,}"),
        ("Target", f"{targets_text(comparison)}, δ = {delta_text(comparison.delta)}"),
        ("ε holds for", comparison.basis),
        ("Accountant", comparison.accountant),
        ("Sampling", f"{comparison.sampling}, rate {comparison.sampling_rate:g}"),
        ("Placement of the noise", comparison.placement),
        ("Device and executor", f"{comparison.device}, {comparison.executor}"),
        ("Created", comparison.created),
        ("Time taken", f"{minutes} min {seconds} s" if minutes else f"{seconds} s"),
    )
    return Table(("What", "Value"), lines, words=("Value",))


def table(comparison: Comparison, baseline_name: str | None = None) -> rich.table.Table:
    """Tabulate the result for a terminal of 100 columns."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    several = len(set(comparison.targets.values())) > 1
    lines = tuple(
        (
            name_cell(row),
            estimate_text(row.global_accuracy, row.pairs > 1),
            estimate_text(row.personal_accuracy, row.pairs > 1),
            points(row.difference) if row.difference else NONE,
            NONE if row.improvement is None else f"{row.improvement.value:.2f}",
            share_text(target_share(one.target, one.mean) for one in row.spent) if several else spent_cell(row),
            rounds_text(row.training_rounds, row.search_rounds),
        )
        for row in summarise(comparison, baseline.name)
    )
    return Table(
        ("controller", "global", "personal", "difference", "ahead", "ε spent", "before"),
        lines,
        title=summary_line(comparison),
        caption="accuracy in %: interquartile mean [95 % interval]; difference in points per seed to "
        f"{baseline.label}; ahead: share of seeds on which it is; before: rounds of training and search"
        + ("; ε spent: of each instance's own" if several else ""),
    ).terminal()
