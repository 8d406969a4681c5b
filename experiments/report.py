"""The report of a comparison: one page for people (Markdown and self-contained HTML), JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import rich.box
import rich.markup
import rich.table
from matplotlib.figure import Figure

from experiments import figures
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


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column is a heading, the others are figures unless they are named in `words`."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ()

    def is_text(self, column: int) -> bool:
        """Whether the column is set flush left."""
        return column == 0 or self.headers[column] in self.words


@dataclass(frozen=True)
class Code:
    """A command line."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure and the sentence that says what it shows; only HTML has it."""

    draw: Callable[[Comparison], Figure]
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[str | Table | Code | Picture, ...]


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
            _epsilon(row.epsilon_mean),
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
        f"(ε, δ) = ({comparison.epsilon:g}, {_delta(comparison.delta)}) protects a whole client, that is all of its "
        f"data, under add/remove adjacency, counted by {comparison.accountant}."
    )
    joint = "A client's personal model never leaves it, so personal accuracy is covered in the joint (billboard) sense."
    claim = (
        "What is promised is ε by the ledger, which holds however the controller chose. ε by PLD is recomputed from "
        "the noise that was used, as a check: it must not be larger, and is no promise where the noise was chosen "
        "during the run."
    )
    alone = (
        "Each ε holds for one run published by itself. The runs compared here share their seeds, and with them their "
        "noise, so that they can be paired: do not publish two of them, and deploy with a seed that nobody knows."
    )
    return [unit, trust, joint, claim, alone]


def _privacy_table(comparison: Comparison, rows: list[Row]) -> Table:
    headers = ("Controller", "Signals", "Classes", "ε by ledger, mean", "largest", "ε by PLD, largest")
    lines = tuple(
        (
            row.label,
            controller.signals,
            ", ".join(controller.signal_classes) or "none",
            _epsilon(row.epsilon_mean),
            _epsilon(row.epsilon_max),
            _epsilon(row.epsilon_pld),
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
        ("Target", f"ε = {_epsilon(comparison.epsilon)}, δ = {_delta(comparison.delta)}"),
        ("Adjacency", "client-level, add or remove one client"),
        ("Accountant", comparison.accountant),
        ("Sampling", f"{comparison.sampling}, rate {comparison.sampling_rate:g}"),
        ("Placement of the noise", comparison.placement),
        ("Device and executor", f"{comparison.device}, {comparison.executor}"),
        ("Created", comparison.created),
        ("Time taken", f"{minutes} min {seconds} s" if minutes else f"{seconds} s"),
    )
    return Table(("What", "Value"), lines, words=("Value",))


def _epsilon(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else "∞"


def _delta(value: float) -> str:
    return f"{value:g}".replace("e-0", "e-")


def _summary_line(comparison: Comparison) -> str:
    return (
        f"{comparison.task} task, {comparison.method} on {comparison.dataset}, {comparison.clients} clients, "
        f"{comparison.rounds} rounds, ε = {_epsilon(comparison.epsilon)}, δ = {_delta(comparison.delta)}"
    )


def table(comparison: Comparison, baseline_name: str | None = None) -> rich.table.Table:
    """The result for a terminal of 100 columns."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    shown = rich.table.Table(
        title=rich.markup.escape(_summary_line(comparison)),
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
            _epsilon(row.epsilon_mean),
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


def markdown(comparison: Comparison, sections: Iterable[Section]) -> str:
    """The report as text that reads well in a terminal."""
    parts = ["# DPilot comparison", _md(_summary_line(comparison))]
    for section in sections:
        parts.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Table):
                parts.append(_md_table(block))
            elif isinstance(block, Code):
                parts.append("\n".join(f"    {line}" for line in block.text.splitlines()))
            elif isinstance(block, str):
                parts.append(_md(block))
        if any(isinstance(block, Picture) for block in section.blocks):
            parts.append("The figures are in report.html, beside this file.")
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    """One line in which no label can start a table cell or HTML."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def _md_table(block: Table) -> str:
    cells = [[_md(cell) for cell in line] for line in (block.headers, *block.rows)]
    widths = [max(3, *(len(line[column]) for line in cells)) for column in range(len(block.headers))]
    left = [block.is_text(column) for column in range(len(widths))]
    rule = [("-" * width if text else "-" * (width - 1) + ":") for width, text in zip(widths, left, strict=True)]
    lines = [
        [cell.ljust(width) if text else cell.rjust(width) for cell, width, text in zip(line, widths, left, strict=True)]
        for line in cells
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


_CSS = """
:root { color-scheme: light; --ink: #1c1f23; --soft: #59606b; --line: #dfe3e8; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 74rem; color: var(--ink); background: #fff;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { max-width: 46rem; margin: .6rem 0; }
.summary { color: var(--soft); margin-top: 0; }
.verdict { border-left: 4px solid var(--accent); background: #f2f8fc; padding: .9rem 1.1rem;
  max-width: 50rem; border-radius: 0 6px 6px 0; }
.verdict h2 { margin: 0 0 .3rem; }
.verdict p { margin: 0; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .4rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; border-bottom: 2px solid var(--line); vertical-align: bottom; }
th:first-child { position: sticky; left: 0; background: #fff; text-align: left; padding-left: 0; }
tbody th { font-weight: 600; }
.text { text-align: left; white-space: normal; min-width: 8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; break-inside: avoid; }
figure img { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .9rem; }
pre { background: #f5f6f8; padding: .8rem 1rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 40rem) { th, td { padding: .35rem .5rem; } thead th { white-space: normal; }
  table { font-size: .85rem; }
  tbody th { max-width: 8.5rem; white-space: normal; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; }
  table, figcaption { font-size: 8.5pt; } th, td { padding: .3rem .5rem; } thead th { white-space: normal; }
  .scroll { overflow: visible; } h2 { break-after: avoid; } tr { break-inside: avoid; }
  .figures { grid-template-columns: 1fr 1fr; } .verdict { background: none; } }
"""


def html(comparison: Comparison, sections: Iterable[Section]) -> str:
    """The report as one file: style and figures are inside, and the page may load nothing."""
    title = f"DPilot comparison: {comparison.task}"
    body = "\n".join(_html_section(section, comparison) for section in sections)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="summary">{escape(_summary_line(comparison))}</p>\n'
        f"{body}\n</body>\n</html>\n"
    )


def _html_section(section: Section, comparison: Comparison) -> str:
    blocks = "\n".join(_html_block(block, comparison) for block in section.blocks)
    if any(isinstance(block, Picture) for block in section.blocks):
        blocks = f'<div class="figures">\n{blocks}\n</div>'
    kind = ' class="verdict"' if section.title == "Verdict" else ""
    return f"<section{kind}>\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>"


def _html_block(block: str | Table | Code | Picture, comparison: Comparison) -> str:
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Code):
        return f"<pre><code>{escape(block.text)}</code></pre>"
    if isinstance(block, Picture):
        data = figures.svg_base64(block.draw(comparison))
        image = f'<img alt="{escape(block.caption)}" src="data:image/svg+xml;base64,{data}">'
        return f"<figure>{image}<figcaption>{escape(block.caption)}</figcaption></figure>"
    return f"<p>{escape(block)}</p>"


def _html_table(block: Table) -> str:
    def line(cells: tuple[str, ...], head: bool) -> str:
        marks = [' class="text"' if column and block.is_text(column) else "" for column in range(len(cells))]
        tags = ["th" if head or not column else "td" for column in range(len(cells))]
        parts = zip(tags, marks, cells, strict=True)
        return "<tr>" + "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for tag, mark, cell in parts) + "</tr>"

    head = line(block.headers, head=True)
    rows = "\n".join(line(cells, head=False) for cells in block.rows)
    return f'<div class="scroll"><table>\n<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table></div>'
