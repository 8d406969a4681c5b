"""Drawing of a comparison's figures: styles, panels of curves over the rounds, the legend, SVG and PNG.

Figures are free-standing; pyplot and its global state are not used. A controller keeps its colour in all figures.
Lines are medians over runs, bands reach from the 10 % to the 90 % quantile.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.records.comparison import EVALUATED, Comparison, ControllerResult
from fl_core.base.arrays import FloatArray

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
"""Okabe and Ito 2008, told apart by all common kinds of colour blindness; their yellow is too pale on white."""
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
WIDTH = 6.4
"""Width of a figure in inches: readable at the width of a phone with the font sizes below."""
GREY = "#555555"
_TITLE, _LEGEND = 64, 32  # most letters in a line
_LETTER, _KEY, _LINE = 0.088, 0.5, 0.24  # inches: of a legend's letter, of its key with the gaps, of its line
_FEW_LINES = 4
"""Lines of a legend that a figure has room for as it is."""

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "svg.hashsalt": "dpilot",
}


@dataclass(frozen=True)
class LineStyle:
    """Style of one controller in every figure."""

    colour: str
    dash: str
    marker: str
    width: float
    """In points; later controllers are drawn thinner, so that equal lines show below each other."""


def line_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Assign a style to each controller by name."""
    return named_styles([controller.name for controller in comparison.controllers])


def named_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """Assign a style to each name in order; beyond seven, colours repeat with another dash."""
    return {
        name: LineStyle(
            COLOURS[index % len(COLOURS)],
            _DASHES[(index // len(COLOURS)) % len(_DASHES)],
            _MARKERS[index % len(_MARKERS)],
            max(1.5, 3.6 - 0.42 * index),
        )
        for index, name in enumerate(names)
    }


def aligned(
    controller: ControllerResult,
    name: str,
    instances: Collection[str] | None = None,
    scales: Mapping[str, float] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Align a trajectory of all episodes, or of those of some instances, on common rounds, in its instance's scale.

    An episode that ended early keeps its last value where the metric describes the model or the budget, which stay as
    they are; a decision (clip norm, …) ends with the episode. Values that are not finite are left out.

    Returns:
        rounds [R] and values [episodes, R], NaN where an episode has no value; R = 0 if nothing was recorded.
    """
    stays = name in EVALUATED or name == "epsilon_spent"
    curves = []
    for episode in controller.episodes:
        if instances is not None and episode.instance not in instances:
            continue
        rounds, values = (np.asarray(part, dtype=np.float64) for part in episode.series(name))
        values = values if scales is None else scales[episode.instance] * values
        finite = np.isfinite(values)
        if finite.any():
            curves.append((rounds[finite], values[finite]))
    if not curves:
        return np.empty(0), np.empty((0, 0))
    grid = np.unique(np.concatenate([rounds for rounds, _ in curves]))
    table = [np.interp(grid, x, y, left=math.nan, right=None if stays else math.nan) for x, y in curves]
    return grid, np.stack(table)


def figure_svg(figure: Figure) -> str:
    """Render a figure as SVG text, the same for the same data; letters are drawn as paths, so no font is needed."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "dpilot", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def figure_png(figure: Figure, dpi: int = 110) -> bytes:
    """Render a figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def figure_file(figure: Figure, form: str) -> bytes:
    """Render a figure as svg, png or pdf, the same for the same data."""
    if form == "svg":
        return figure_svg(figure).encode()
    if form == "png":
        return figure_png(figure, dpi=300)
    buffer = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42}):  # letters stay text: venues refuse the usual Type 3 fonts
        figure.savefig(buffer, format=form, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return buffer.getvalue()


def svg_base64(figure: Figure) -> str:
    """Render a figure as SVG in base64, for a data URI."""
    return base64.b64encode(figure_svg(figure).encode()).decode("ascii")


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Make a figure of `count` panels below each other; many panels are lower."""
    figure = Figure(figsize=(WIDTH, 0.8 + (2.9 if count <= 2 else 2.4) * count), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def curves(
    ax: Axes,
    comparison: Comparison,
    name: str,
    title: str,
    unit: str,
    scale: float | Mapping[str, float] = 1.0,
    instances: Collection[str] | None = None,
    band: bool = True,
) -> None:
    """Draw a trajectory of every controller over the rounds: the median over runs, and a band around it.

    Args:
        ax: panel that is drawn in.
        comparison: the measurements.
        name: of the trajectory.
        title: of the panel.
        unit: name and unit of the axis.
        scale: factor from the metric to that unit, or one for each instance.
        instances: instances whose runs are drawn; None for all.
        band: False to leave the band out.
    """
    styles = line_styles(comparison)
    drawn = False
    for controller in comparison.controllers:
        if isinstance(scale, Mapping):
            rounds, values = aligned(controller, name, instances, scale)
        else:
            rounds, values = aligned(controller, name, instances)
            values = scale * values
        if not rounds.size:
            continue
        drawn = True
        style = styles[controller.name]
        low, middle, high = np.nanquantile(values, [0.1, 0.5, 0.9], axis=0)
        marker = style.marker if rounds.size == 1 else ""  # a line needs two points
        ax.plot(
            rounds, middle, color=style.colour, linestyle=style.dash, linewidth=style.width, marker=marker, markersize=4
        )
        if band and len(values) > 1:
            ax.fill_between(rounds, low, high, color=style.colour, alpha=0.11, linewidth=0)
    ax.set_title(wrapped(title, _TITLE))
    ax.set_ylabel(unit)
    ax.set_xlabel("communication round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not drawn:
        ax.text(0.5, 0.5, "not recorded", transform=ax.transAxes, ha="center", color=GREY)


def skip_start(ax: Axes) -> None:
    """Begin the axis at the lowest line after a quarter of the rounds: the steep start hides all differences."""
    lines = [np.asarray(line.get_xydata()) for line in ax.lines]
    if lines:
        last = max(line[-1, 0] for line in lines)
        late = np.concatenate([line[line[:, 0] >= last / 4, 1] for line in lines])
        margin = 0.04 * (ax.get_ylim()[1] - late.min())
        ax.set_ylim(bottom=max(0.0, late.min() - margin))


def log_axis(ax: Axes) -> None:
    """Set a log scale with plain numbers at 1, 2, 3 and 5 of every decade, so that a narrow range has labels too."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, ax: Axes, comparison: Comparison, markers: bool = False) -> Figure:
    """Add one legend below all panels, in the order of the controllers; `ax` is any of them.

    The figure grows with a long legend, so that the panels keep their height.
    """
    styles = [line_styles(comparison)[controller.name] for controller in comparison.controllers]
    handles = [
        ax.plot([], [], color=one.colour, linestyle=one.dash, linewidth=2.5, marker=one.marker if markers else "")[0]
        for one in styles
    ]
    labels = [wrapped(controller.label, _LEGEND) for controller in comparison.controllers]
    widest = max(len(line) for label in labels for line in label.splitlines())
    width, height = figure.get_size_inches()
    columns = max(2, int(width / (_LETTER * widest + _KEY)))
    each = -(-len(labels) // columns)
    lines = max(sum(1 + one.count("\n") for one in labels[i : i + each]) for i in range(0, len(labels), each))
    figure.set_size_inches(width, height + _LINE * max(0, lines - _FEW_LINES))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return figure


def footnote(figure: Figure, text: str) -> Figure:
    """Write what a figure's ε rests on at its foot; nothing for ""."""
    if not text:
        return figure
    words = textwrap.fill(text, int(14 * figure.get_figwidth()))
    if figure.legends:  # which stands at the foot itself: text below it would be drawn over it
        figure.legends[0].set_title(words, prop=FontProperties(size="small"))
        figure.legends[0].get_title().set_color(GREY)
    else:
        figure.supxlabel(words, x=0.01, ha="left", fontsize="small", color=GREY)
    return figure


def wrapped(label: str, width: int, lines: int = 3) -> str:
    """Wrap a label to a few lines, cut only beyond them; `$` is escaped, as it would start a formula."""
    return "\n".join(textwrap.wrap(label, width, max_lines=lines, placeholder="…")).replace("$", r"\$")
