"""Pictures of a paper's table: curves over the rounds or grouped bars, with the printed numbers as marks.

There is one picture per block, with a panel for each guarantee; runs without noise stand in each of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from experiments.papers.cells import NO_NOISE
from experiments.papers.measures import MEASURES, Curve
from experiments.papers.results import BlockResult, Number
from experiments.papers.tables import PaperTable
from experiments.reports.drawing import (
    GREY,
    STYLE,
    WIDTH,
    figure_png,
    figure_svg,
    footnote,
    named_styles,
    wrapped,
)
from fl_core.base.arrays import FloatArray
from fl_core.base.files import write_bytes, write_text

FOLDER = "figures"
"""Folder of the pictures in that of the table."""
_WIDEST = 13.0  # inches
_PRINTED_MARK: Any = {"linestyle": "", "color": "white", "markeredgecolor": "black"}
_OPEN_HATCH = "////"


def draw(table: PaperTable, results: Sequence[BlockResult], folder: Path) -> dict[str, str]:
    """Write a PNG and an SVG of every block that has numbers.

    Args:
        table: the table.
        results: its blocks.
        folder: of the table.

    Returns:
        block -> path of its PNG in the folder.

    Raises:
        FileError: a picture cannot be written.
    """
    drawn = {}
    for result in results:
        if result.numbers:
            name = re.sub(r"[^\w.+=-]+", "-", result.block.name)
            figure = block_figure(table, result)
            write_bytes(folder / FOLDER / f"{name}.png", figure_png(figure, dpi=150))
            write_text(folder / FOLDER / f"{name}.svg", figure_svg(figure))
            drawn[result.block.name] = f"{FOLDER}/{name}.png"
    return drawn


def block_figure(table: PaperTable, result: BlockResult) -> Figure:
    """Draw a block: curves where its measure was taken after every round, else bars.

    Args:
        table: that it is of.
        result: with a number at least.
    """
    with mpl.rc_context(STYLE):
        figure = _curves_figure(result) if result.curves else _bars_figure(result)
        letters = int(11.5 * figure.get_figwidth())
        title = wrapped(f"{table.paper}, {table.where}, {result.block.name}: {table.title}", letters)
        figure.suptitle(f"{title}\n{wrapped(_data(result), letters)}", x=0.01, ha="left", fontsize=11.5)
        _legend(figure, result)
        return footnote(figure, _foot(result))


def _data(result: BlockResult) -> str:
    """Say what the runs are on."""
    settings = result.settings
    on = f"on {settings.get('dataset', 'several datasets')}"
    on += f", model {settings['model']}" if "model" in settings else ""
    on += f", {settings['rounds']} rounds" if "rounds" in settings else ""
    return f"SUBSTITUTE for {result.substitute_for}: {on}" if result.substitute_for else on


def _foot(result: BlockResult) -> str:
    """Say what marks, bands and ε stand for."""
    several = max(number.seeds for number in result.numbers) > 1
    words = []
    if several:
        words.append(f"{'Lines' if result.curves else 'Bars'} are means over seeds")
        words[0] += ", bands reach from the lowest to the highest." if result.curves else ", whiskers ± std."
    else:
        words.append("One seed.")
    if result.block.measure == "epsilon_to_accuracy" and "as-published" in result.guarantees:
        words.append("As published, too, the bars are the ledger's ε, of the noise on the updates alone.")
    basis = dict.fromkeys(one.basis for one in result.numbers if one.basis and math.isfinite(one.claimed))
    words += [f"ε is for {one}." for one in basis]
    return " ".join(words)


# ---------------------------------------------------------------- panels


def _panel_title(result: BlockResult, guarantee: str, columns: Sequence[str]) -> str:
    """Name the guarantee of a panel, with its ε where all of it have one."""
    if guarantee == NO_NOISE:
        return NO_NOISE
    own = [one for one in result.numbers if one.guarantee == guarantee and one.column in columns]
    spent = {f"{one.claimed:.3g}" for one in own}
    epsilon = f" ε = {spent.pop()}" if len(spent) == 1 else " ε"
    counted = "claimed by the paper's accounting" if guarantee == "as-published" else "by the ledger"
    return f"{guarantee}:{epsilon} {counted}"


def _shown_columns(result: BlockResult) -> list[str]:
    """List the columns with a number of ours."""
    return [column for column in result.block.columns if any(one.column == column for one in result.numbers)]


def _shown_rows(result: BlockResult) -> list[str]:
    """List the rows with a number of ours."""
    return [row for row in result.block.rows if any(one.row == row for one in result.numbers)]


def _curves_figure(result: BlockResult) -> Figure:
    """Draw a panel for each column and guarantee."""
    columns, guarantees = _shown_columns(result), result.compared
    width = WIDTH if len(guarantees) == 1 else 1.6 * WIDTH
    figure = Figure(figsize=(width, 1.9 + 2.9 * len(columns)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(columns), len(guarantees), squeeze=False, sharey="row")
    for line, column in zip(axes, columns, strict=True):
        for ax, guarantee in zip(line, guarantees, strict=True):
            _curves_panel(ax, result, column, guarantee)
        line[0].set_ylabel(wrapped(MEASURES[result.block.measure].unit, 28))
    for ax in axes[-1]:
        ax.set_xlabel("communication round")
    return figure


def _curves_panel(ax: Axes, result: BlockResult, column: str, guarantee: str) -> None:
    """Draw the mean over seeds of every row, a band around it, and the printed end as a mark."""
    styles = named_styles(list(result.block.rows))
    for row, style in styles.items():
        runs = result.curves.get((row, column, guarantee)) or result.curves.get((row, column, NO_NOISE)) or {}
        rounds, values = _aligned(list(runs.values()))
        if not rounds.size:
            continue
        marker = style.marker if rounds.size == 1 else ""
        mean = values.mean(0)
        ax.plot(rounds, mean, color=style.colour, linestyle=style.dash, linewidth=style.width, marker=marker)
        if len(values) > 1:
            ax.fill_between(rounds, values.min(0), values.max(0), color=style.colour, alpha=0.14, linewidth=0)
        printed = result.block.number(row, column)
        if printed is not None:
            ax.plot(
                [rounds[-1]],
                [printed],
                "D",
                markersize=7,
                clip_on=False,
                zorder=5,
                color=style.colour,
                markeredgecolor="black",
            )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = _panel_title(result, guarantee, [column])
    ax.set_title(f"{wrapped(column, 40)}\n{title}" if len(result.block.columns) > 1 else title, fontsize=10)


def _aligned(curves: Sequence[Curve]) -> tuple[FloatArray, FloatArray]:
    """Put curves on the rounds that all have: rounds [R] and values [curves, R]."""
    known = [curve for curve in curves if curve.rounds]
    common = sorted(set.intersection(*(set(one.rounds) for one in known))) if known else []
    tables = [dict(zip(one.rounds, one.values, strict=True)) for one in known]
    return np.array(common, dtype=np.float64), np.array([[one[number] for number in common] for one in tables])


def _bars_figure(result: BlockResult) -> Figure:
    """Draw a panel for each guarantee: a group of bars for each column, one bar per row."""
    columns, rows, guarantees = _shown_columns(result), _shown_rows(result), result.compared
    width = min(_WIDEST, max(WIDTH, 1.2 + 0.22 * len(columns) * (len(rows) + 1)))
    figure = Figure(figsize=(width, 2.0 + 2.7 * len(guarantees)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(guarantees), 1, squeeze=False, sharey=True)[:, 0]
    letters = max(10, int(11 * (width - 1) / len(columns)))
    for ax, guarantee in zip(axes, guarantees, strict=True):
        _bars_panel(ax, result, guarantee, columns, rows)
        ax.set_title(_panel_title(result, guarantee, columns), fontsize=10)
        ax.set_ylabel(wrapped(MEASURES[result.block.measure].unit, 26))
        ax.set_xticks(range(len(columns)), [wrapped(column, letters) for column in columns])
        ax.grid(axis="x", visible=False)
    return figure


def _bars_panel(ax: Axes, result: BlockResult, guarantee: str, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draw the bars of one guarantee, the printed numbers as marks on them."""
    styles, wide = named_styles(list(result.block.rows)), 0.84 / len(rows)
    for place, (index, row) in ((group, one) for group in range(len(columns)) for one in enumerate(rows)):
        number = result.find(row, columns[place], guarantee)
        x, style = place - 0.42 + wide * (index + 0.5), styles[row]
        if number is not None:
            _bar(ax, x, 0.92 * wide, number, style.colour)
        printed = result.block.number(row, columns[place])
        if printed is not None:
            ax.plot([x], [printed], marker="D", markersize=5, zorder=5, **_PRINTED_MARK)
    ax.set_xlim(-0.55, len(columns) - 0.45)


def _bar(ax: Axes, x: float, width: float, number: Number, colour: str) -> None:
    """Draw one bar: hatched and with an arrow where its number lies above; a cross where there is none."""
    if number.mean is not None:
        ax.bar([x], [number.mean], width, color=colour, yerr=number.spread, ecolor=GREY, capsize=2)
    elif number.above is not None:
        ax.bar([x], [number.above], width, color="white", edgecolor=colour, hatch=_OPEN_HATCH)
        ax.plot([x], [number.above], "^", color=colour, markersize=6)
    else:
        ax.plot([x], [0], "x", color=colour, markersize=6, clip_on=False)


# ---------------------------------------------------------------- legend


def _legend(figure: Figure, result: BlockResult) -> None:
    """Add one legend below all panels: the rows, and the marks that are used."""
    styles = named_styles(list(result.block.rows))
    handles: list[Artist] = []
    for row in _shown_rows(result):
        style, label = styles[row], wrapped(row, 32)
        dash: Any = style.dash  # matplotlib names the dashes one by one
        line = Line2D([], [], color=style.colour, linestyle=dash, linewidth=2.5, label=label)
        handles.append(line if result.curves else Patch(color=style.colour, label=label))
    handles += _marks(result)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 3 if figure.get_figwidth() < 8 else 4)
    )


def _marks(result: BlockResult) -> Iterator[Artist]:
    """Yield the legend's entries for the marks that are used."""
    shown = {(one.row, one.column) for one in result.numbers}
    if any(result.block.number(*place) is not None for place in shown):
        yield Line2D([], [], marker="D", markersize=6, label="printed in the paper", **_PRINTED_MARK)
    if result.curves:
        return
    if any(one.mean is None and one.above is not None for one in result.numbers):
        yield Patch(facecolor="white", edgecolor=GREY, hatch=_OPEN_HATCH, label="not reached: above")
    if any(one.mean is None and one.above is None for one in result.numbers):
        yield Line2D([], [], marker="x", linestyle="", color=GREY, label="no number")
