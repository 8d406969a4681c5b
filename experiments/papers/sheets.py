"""The results of a paper's table as sheets, for the terminal and for result.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.papers.cells import NO_NOISE
from experiments.papers.measures import MEASURES
from experiments.papers.results import OVERALL, BlockResult, Number
from experiments.papers.tables import PaperTable
from experiments.reports.tables import Table, markdown_line
from experiments.terminal import console
from fl_core.base.files import write_text
from fl_core.run.choices import EVALUATIONS

PRINTED = "printed"
UPLOAD = "kB up"
"""Column of the bytes that a client uploads per round, mean over the columns."""
FEWEST_RANKED = 3
"""Fewest methods that are ranked on a single seed: of two, chance alone may decide which is ahead."""
DASH = "–"
_SHOWN = ("dataset", "model", "clients", "partition", "sampling_rate", "rounds", "local_epochs", "local_steps")
_TRAINING = ("batch_size", "optimizer", "learning_rate", "augmentation", "input_normalization", "clip_norm")
_PRIVACY = ("noise_multiplier", "epsilon", "delta", "evaluation")


@dataclass(frozen=True)
class Sheet:
    """A small table with a title line above and remarks below it."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """Table without title and remarks; the column without a name, that of the guarantees, holds text."""
        return Table(self.heading, self.rows, words=("",))

    def as_markdown(self) -> str:
        """Write it as a section of a Markdown file."""
        remarks = "".join(f"\n- {remark}" for remark in self.remarks)
        return f"**{markdown_line(self.title)}**\n\n{self.table.markdown()}\n" + (f"{remarks}\n" if remarks else "")


def sheets(result: BlockResult) -> list[Sheet]:
    """Make all sheets of a block that have rows."""
    if not result.numbers:
        return []
    made = [_measured(result), _order(result), _privacy(result), _tests(result), _time(result)]
    return [sheet for sheet in made if sheet.rows]


def _measured(result: BlockResult) -> Sheet:
    """Make the sheet of printed numbers with ours below them, and the upload that each method needs for its own."""
    block, rows = result.block, []
    for row in block.rows:
        lines = {PRINTED: [_fixed(block.number(row, column)) for column in block.columns]}
        for guarantee in result.guarantees:
            lines[guarantee] = [_ours(result, row, column, guarantee) for column in block.columns]
        known = {name: cells for name, cells in lines.items() if set(cells) != {DASH}}
        rows += [
            ("" if number else row, name, *cells, _upload(result, row, name))
            for number, (name, cells) in enumerate(known.items())
        ]
    title = _title(result, MEASURES[block.measure].summary)
    return Sheet(title, ("method", "", *block.columns, UPLOAD), tuple(rows), tuple(_measured_remarks(result)))


def _measured_remarks(result: BlockResult) -> Iterable[str]:
    """Yield the remarks below our numbers: what they are means of, and why some are open or missing."""
    seeds = sorted({number.seeds for number in result.numbers})
    words = f"ours: mean of {' or '.join(map(str, seeds))} seed{'s' if seeds != [1] else ''}"
    yield words + (", ± standard deviation" if seeds[-1] > 1 else "")
    yield f"{UPLOAD}: uploaded per client and round, mean over the columns"
    if len(result.code) > 1:
        yield f"from several versions of the code: {', '.join(result.code)}"
    if any(number.diverged for number in result.numbers):
        yield "* some of the runs diverged"
    if result.block.measure == "epsilon_to_accuracy":
        yield from _epsilon_remarks(result)
    for reason, places in _reasons(result).items():
        words = "; ".join(f"{row} ({', '.join(guarantees)})" for row, guarantees in places.items())
        yield f"{reason}: {words}"


def _reasons(result: BlockResult) -> dict[str, dict[str, list[str]]]:
    """Collect the reasons for numbers that are open or missing: reason -> row -> guarantees."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in result.numbers:
        if one.reason:
            guarantees = found.setdefault(one.reason, {}).setdefault(one.row, [])
            guarantees += [one.guarantee] if one.guarantee not in guarantees else []
    return found


def _epsilon_remarks(result: BlockResult) -> Iterable[str]:
    """Yield what an ε on the way to an accuracy is worth."""
    yield (
        "ε of the rounds up to the first that reached the accuracy, as the ledger counts a run that was planned to end "
        "with it, not of one that is stopped by what it measured; as-published: of the noise on the updates alone"
    )
    if any(number.adaptive for number in result.numbers):
        yield "a controller chose noise from what was released: for its runs this ε measures progress, certifying none"
    for basis in dict.fromkeys(number.basis for number in result.numbers if number.basis):
        yield f"it is for {basis}"


def _upload(result: BlockResult, row: str, guarantee: str) -> str:
    """Format the bytes that a client uploads per round in kB, mean over the columns."""
    own = [one for one in result.numbers if (one.row, one.guarantee) == (row, guarantee)]
    return _mean(own, lambda number: number.uplink_bytes / 1000, 1) if own else DASH


def _title(result: BlockResult, what: str) -> str:
    """Compose the title of a sheet, which names the data wherever it is not the paper's."""
    title = f"{result.block.name}: {what}"
    if result.substitute_for:
        title += f" (ON A SUBSTITUTE: {result.settings.get('dataset', 'others')} for {result.substitute_for})"
    return title


def _ours(result: BlockResult, row: str, column: str, guarantee: str) -> str:
    number = result.at(row, column, guarantee)
    if number is None:
        return DASH
    if number.mean is None:
        return "none" if number.above is None else f"> {number.above:.2f}"
    spread = "" if number.spread is None else f" ±{number.spread:.2f}"
    return f"{number.mean:.2f}{spread}{'*' if number.diverged else ''}"


def _order(result: BlockResult) -> Sheet:
    """Make the sheet of rank correlations with the printed order."""
    block, remarks = result.block, tuple[str, ...]()
    if len(block.rows) > 1:
        names = (*block.columns, OVERALL)
        found = {guarantee: result.correlations(guarantee) for guarantee in result.compared}
        remarks = (f"1: the printed order, -1: its reverse; {OVERALL}: of the means over the columns",)
    else:
        names = tuple(block.rows)
        found = {guarantee: result.column_correlations(guarantee) for guarantee in result.compared}
    if {number.seeds for number in result.numbers} == {1}:
        if _most_ranked(result) < FEWEST_RANKED:
            return Sheet("", (), ())
        remarks += ("one seed per number: where two are close, their order is chance",)
    rows = [(guarantee, *(_fixed(values[name]) for name in names)) for guarantee, values in found.items()]
    known = [row for row in rows if any(cell != DASH for cell in row[1:])]
    what = "methods" if len(block.rows) > 1 else "columns"
    return Sheet(
        _title(result, f"rank correlation of the {what} with the printed order"), ("", *names), tuple(known), remarks
    )


def _most_ranked(result: BlockResult) -> int:
    """Return the most of our numbers, beside printed ones, that are put in an order."""
    several = len(result.block.rows) > 1
    ranked = Counter(
        (guarantee, one.column if several else one.row)
        for one in result.numbers
        if one.printed is not None and one.mean is not None
        for guarantee in (result.compared if one.guarantee == NO_NOISE else (one.guarantee,))
    )
    return max(ranked.values(), default=0)


def _privacy(result: BlockResult) -> Sheet:
    """Make the sheet of every ε that was spent, claimed and certified."""
    rows, uncovered = [], {}
    for row in result.block.rows:
        for guarantee in result.guarantees:
            numbers = [result.at(row, column, guarantee) for column in result.block.columns]
            if any(numbers):
                rows.append((row, guarantee, *(DASH if one is None else _epsilons(one) for one in numbers)))
                phrases = dict.fromkeys(phrase for one in numbers if one for phrase in one.uncovered)
                if phrases:
                    uncovered[f"{row}, {guarantee}"] = "; ".join(phrases)
    remarks = ["sound: ε spent by the ledger; as-published: claimed / certified (by the noise on the updates alone)"]
    remarks += [f"certified for {basis}" for basis in dict.fromkeys(one.basis for one in result.numbers if one.basis)]
    remarks += _span("at δ = 1e-5", [(one.at_small_delta, one.basis) for one in result.numbers])
    seen = [(one.uploads_view, one.uploads_basis) for one in result.numbers]
    remarks += _span("if the server sees single uploads,", seen)
    remarks += [f"{who} does not cover {what}" for who, what in uncovered.items()]
    title = _title(result, f"ε at δ = {result.settings.get('delta', 'as set')}")
    return Sheet(title, ("method", "", *result.block.columns), tuple(rows), tuple(remarks))


def _span(view: str, epsilons: Sequence[tuple[float | None, str]]) -> list[str]:
    """Write a remark about ε under another view for each basis that such an ε has; pairs (ε, basis)."""
    by_basis: dict[str, list[float]] = {}
    for epsilon, basis in epsilons:
        if epsilon is not None:
            by_basis.setdefault(basis, []).append(epsilon)
    return [
        f"{view} the noise on the updates certifies ε from {min(known):.4g} to {max(known):.4g}"
        + (f", for {basis}" if basis else "")
        for basis, known in by_basis.items()
    ]


def _epsilons(number: Number) -> str:
    if math.isinf(number.claimed):
        return "no privacy"
    if number.guarantee in ("sound", NO_NOISE):
        return f"{number.claimed:.4g}"
    certified = "none" if number.certified is None else f"{number.certified:.4g}"
    return f"{number.claimed:.4g} / {certified} ({number.updates_only:.4g})"


def _tests(result: BlockResult) -> Sheet:
    """Make the sheet of accuracy under every test."""
    if result.block.measure != "personal_accuracy":
        return Sheet("", (), ())
    rows = []
    for row in result.block.rows:
        for guarantee in result.guarantees:
            numbers = [one for one in result.numbers if (one.row, one.guarantee) == (row, guarantee)]
            if numbers:
                rows.append((row, guarantee, *(_mean(numbers, _test(mode)) for mode in EVALUATIONS)))
    return Sheet(
        _title(result, "accuracy of the clients' models by what they are tested on, mean over the columns"),
        ("method", "", *EVALUATIONS.values()),
        tuple(rows),
    )


def _test(mode: str) -> Callable[[Number], float]:
    return lambda number: number.tests[mode]


def _time(result: BlockResult) -> Sheet:
    rows = []
    for row in result.block.rows:
        for guarantee in result.guarantees:
            own = [one for one in result.numbers if (one.row, one.guarantee) == (row, guarantee)]
            if own:
                seconds = _mean(own, lambda one: one.seconds_per_round), _mean(own, lambda one: one.seconds, 1)
                rows.append((row, guarantee, *seconds))
    heading = ("method", "", "s per round", "s per run")
    return Sheet(_title(result, "time, mean over the columns"), heading, tuple(rows))


def _mean(numbers: Sequence[Number], read: Callable[[Number], float], digits: int = 2) -> str:
    return f"{sum(map(read, numbers)) / len(numbers):.{digits}f}"


def _fixed(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def settings_line(result: BlockResult) -> str:
    """Write the settings that all runs of a block share, in a line."""
    known = result.settings
    names = [name for name in (*_SHOWN, *_TRAINING, *_PRIVACY) if known.get(name) not in (None, "", "none")]
    unused = "local_steps" if known.get("local_epochs") else "local_epochs"
    return ", ".join(f"{name.replace('_', ' ')} {known[name]}" for name in names if name != unused)


def markdown(table: PaperTable, results: Sequence[BlockResult], pictures: Mapping[str, str] | None = None) -> str:
    """Compose result.md; `pictures` are those of the blocks, where they are drawn."""
    parts = [f"# {table.paper}, {table.where}: {table.title}\n", "".join(_listed("Left open by the paper", table.open))]
    parts.append("".join(_listed("To know", table.notes)))
    for result in results:
        own = sheets(result)
        if own:
            substitute = f" (on {result.settings.get('dataset', 'others')})" if result.substitute_for else ""
            parts.append(f"## {result.block.name}{substitute}\n\n{settings_line(result)}\n")
            if pictures and result.block.name in pictures:
                parts.append(f"![{result.block.name}]({pictures[result.block.name]})\n")
            parts += [sheet.as_markdown() for sheet in own]
    return "\n".join(part for part in parts if part)


def _listed(title: str, sentences: Iterable[str]) -> list[str]:
    lines = [f"- {' '.join(sentence.split())}\n" for sentence in sentences]
    return [f"{title}:\n\n", *lines] if lines else []


def write_markdown(
    table: PaperTable, results: Sequence[BlockResult], folder: Path, pictures: Mapping[str, str]
) -> None:
    """Write result.md with the pictures of blocks."""
    write_text(folder / "result.md", markdown(table, results, pictures))


def print_sheets(results: Sequence[BlockResult]) -> None:
    """Print the sheets on the terminal."""
    shown = console(140)
    for result in results:
        for sheet in sheets(result):
            shown.print(sheet.title, style="bold", soft_wrap=True)
            shown.print(sheet.table.terminal(wrap_numbers=True))
            for remark in sheet.remarks:
                shown.print(f"  {remark}", soft_wrap=True)
            shown.print()
