"""Figures of a comparison: what the controllers did, what came of it, what it cost in ε.

Every function returns a free-standing `Figure`; pyplot and its global state are not used. A controller keeps its
colour in all figures. Lines are medians over seeds, bands reach from the 10 % to the 90 % quantile.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from experiments.resampling import Interval, Scores, estimate
from experiments.results import EVALUATED, Comparison, ControllerResult
from experiments.statistics import profile
from experiments.words import targets_text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9")
"""Okabe and Ito 2008, told apart by all common kinds of colour blindness; their yellow is too pale on white."""
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_WIDTH = 6.4  # inches: readable at the width of a phone with the font sizes below
GREY = "#555555"
MOST_PANELS = 6
"""Most panels below each other in one figure."""

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
    """How one controller is drawn in every figure."""

    colour: str
    dash: str
    marker: str
    width: float
    """In points; later controllers are drawn thinner, so that equal lines show below each other."""


def line_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """Controller name -> style; beyond seven controllers colours repeat with another dash."""
    return {
        controller.name: LineStyle(
            COLOURS[index % len(COLOURS)],
            _DASHES[(index // len(COLOURS)) % len(_DASHES)],
            _MARKERS[index % len(_MARKERS)],
            max(1.5, 3.6 - 0.42 * index),
        )
        for index, controller in enumerate(comparison.controllers)
    }


def aligned(
    controller: ControllerResult, name: str, instances: Collection[str] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One trajectory of all episodes, or of those of some instances, on common rounds.

    An episode that ended early keeps its last value where the figure describes the model or the budget, which stay as
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
        finite = np.isfinite(values)
        if finite.any():
            curves.append((rounds[finite], values[finite]))
    if not curves:
        return np.empty(0), np.empty((0, 0))
    grid = np.unique(np.concatenate([rounds for rounds, _ in curves]))
    table = [np.interp(grid, x, y, left=math.nan, right=None if stays else math.nan) for x, y in curves]
    return grid, np.stack(table)


def control_figure(comparison: Comparison) -> Figure:
    """What the controllers decided per round: clip norm, and learning rate and noise where they vary.

    A few instances have a panel each, because what is decided may depend on them.
    """
    names = ["clip_norm"] + [name for name in ("server_learning_rate", "noise_multiplier") if _varies(comparison, name)]
    instances: list[str | None] = [one.name for one in comparison.instances]
    if not 1 < len(instances) <= MOST_PANELS // len(names):
        instances = [None]
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(names) * len(instances))
        for ax, (name, instance) in zip(axes, itertools.product(names, instances), strict=True):
            title, unit = _DECISIONS[name]
            only = None if instance is None else (instance,)
            _curves(ax, comparison, name, title if instance is None else f"{title}: {instance}", unit, 1.0, only)
            if name == "clip_norm":
                _log_axis(ax)
        return _finish(figure, axes, comparison)


_DECISIONS = {
    "clip_norm": ("Clip norm chosen in each round", "clip norm C (L2, log scale)"),
    "server_learning_rate": ("Server learning rate in each round", "server learning rate"),
    "noise_multiplier": ("Noise multiplier in each round", "noise multiplier σ"),
}
"""Figure -> title and unit."""


def learning_figure(comparison: Comparison) -> Figure:
    """Accuracy of the global and of the personal models over the rounds."""
    with mpl.rc_context(STYLE):
        figure, axes = _panels(2)
        _curves(axes[0], comparison, "global_accuracy", "Accuracy of the global model", "test accuracy (%)", 100)
        title = "Accuracy of the personal models, mean over clients"
        _curves(axes[1], comparison, "personal_accuracy", title, "test accuracy (%)", 100)
        for ax in axes:
            _skip_start(ax)
        return _finish(figure, axes, comparison)


def overview_figure(comparison: Comparison) -> Figure:
    """The comparison in one picture: clip norms, and the accuracy they lead to."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.6 * _WIDTH, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        _curves(left, comparison, "clip_norm", "Clip norm chosen in each round", "clip norm C (L2, log scale)")
        _log_axis(left)
        server = comparison.judged_by == "global_accuracy"
        title = f"Accuracy of the {'global model' if server else 'personal models'} at {targets_text(comparison)}"
        _curves(right, comparison, comparison.judged_by, title, "test accuracy (%)", 100)
        _skip_start(right)
        return _finish(figure, [left, right], comparison)


def budget_figure(comparison: Comparison) -> Figure:
    """ε that the ledger has counted after each round, and the target; a panel for each of a few targets."""
    by_target: dict[float, list[str]] = {}
    for instance, target in comparison.targets.items():
        by_target.setdefault(target, []).append(instance)
    shown = sorted(by_target)[:MOST_PANELS]
    label = f"ε spent (δ = {comparison.delta:g})".replace("e-0", "e-")
    with mpl.rc_context(STYLE):
        figure, axes = _panels(len(shown))
        for ax, target in zip(axes, shown, strict=True):
            title = "Privacy budget spent after each round, by the ledger"
            _curves(ax, comparison, "epsilon_spent", title, label, 1.0, by_target[target])
            if math.isfinite(target):
                ax.axhline(target, color=GREY, linewidth=1.2, linestyle=(0, (6, 3)))
                corner = ax.get_yaxis_transform()
                ax.text(0.01, target, f"target ε = {target:g}", transform=corner, va="bottom", color=GREY)
                ax.set_ylim(0, max(ax.get_ylim()[1], target * 1.12))
        return _finish(figure, axes, comparison)


def accuracy_figure(comparison: Comparison) -> Figure:
    """Final accuracies: interquartile mean with 95 % interval, and every run as a faint dot."""
    styles = line_styles(comparison)
    count = len(comparison.controllers)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 1.5 + 0.42 * count), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, 2, sharey=True)
        for ax, name, title in zip(
            axes, ("global_accuracy", "personal_accuracy"), ("Global model", "Personal models"), strict=True
        ):
            for place, controller in enumerate(comparison.controllers):
                style = styles[controller.name]
                scores = Scores.of(controller, name)
                dots = 100 * scores.flat
                ax.plot(dots, [place] * len(dots), ".", color=style.colour, alpha=0.25, markeredgewidth=0)
                _dot(ax, place, scores, style)
            ax.set_title(title)
            ax.set_xlabel("final test accuracy (%)")
            ax.grid(axis="y", visible=False)
            ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        labels = ["\n".join(textwrap.wrap(_shorten(c.label), 18)) for c in comparison.controllers]
        axes[0].set_yticks(range(count), labels)
        axes[0].set_ylim(count - 0.5, -0.5)  # the first controller on top
        return figure


def profile_figure(comparison: Comparison) -> Figure:
    """Performance profiles: the share of runs above each accuracy, with a pointwise 95 % band."""
    styles = line_styles(comparison)
    with mpl.rc_context(STYLE):
        figure, axes = _panels(1)
        ax = axes[0]
        for controller in comparison.controllers:
            found, style = profile(comparison, controller), styles[controller.name]
            ax.plot(
                100 * found.thresholds,
                100 * found.shares,
                color=style.colour,
                linestyle=style.dash,
                linewidth=style.width,
                drawstyle="steps-post",
            )
            if len(Scores.of(controller, comparison.judged_by).pairs) > 1:
                ax.fill_between(
                    100 * found.thresholds,
                    100 * found.low,
                    100 * found.high,
                    color=style.colour,
                    alpha=0.11,
                    linewidth=0,
                    step="post",
                )
        server = comparison.judged_by == "global_accuracy"
        ax.set_title("Runs that end above each accuracy")
        ax.set_xlabel(f"final test accuracy of the {'global model' if server else 'personal models'} (%)")
        ax.set_ylabel("share of runs (%)")
        ax.set_ylim(-3, 103)
        return _finish(figure, axes, comparison)


def figure_svg(figure: Figure) -> str:
    """The figure as SVG text, the same for the same data; letters are drawn as paths, so no font is needed."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "dpilot", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def figure_png(figure: Figure, dpi: int = 110) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def svg_base64(figure: Figure) -> str:
    """`figure_svg` in base64, for a data URI."""
    return base64.b64encode(figure_svg(figure).encode()).decode("ascii")


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, 0.8 + 2.9 * count), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def _curves(
    ax: Axes,
    comparison: Comparison,
    name: str,
    title: str,
    unit: str,
    scale: float = 1.0,
    instances: Collection[str] | None = None,
) -> None:
    styles = line_styles(comparison)
    drawn = False
    for controller in comparison.controllers:
        rounds, values = aligned(controller, name, instances)
        if not rounds.size:
            continue
        drawn = True
        style = styles[controller.name]
        low, middle, high = scale * np.nanquantile(values, [0.1, 0.5, 0.9], axis=0)
        marker = style.marker if rounds.size == 1 else ""  # a line needs two points
        ax.plot(
            rounds, middle, color=style.colour, linestyle=style.dash, linewidth=style.width, marker=marker, markersize=4
        )
        if len(values) > 1:
            ax.fill_between(rounds, low, high, color=style.colour, alpha=0.11, linewidth=0)
    ax.set_title(title)
    ax.set_ylabel(unit)
    ax.set_xlabel("communication round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not drawn:
        ax.text(0.5, 0.5, "not recorded", transform=ax.transAxes, ha="center", color=GREY)


def _skip_start(ax: Axes) -> None:
    """Begin the axis where the lowest line is after a quarter of the rounds: the steep start hides all differences."""
    lines = [np.asarray(line.get_xydata()) for line in ax.lines]
    if lines:
        last = max(line[-1, 0] for line in lines)
        late = np.concatenate([line[line[:, 0] >= last / 4, 1] for line in lines])
        margin = 0.04 * (ax.get_ylim()[1] - late.min())
        ax.set_ylim(bottom=max(0.0, late.min() - margin))


def _log_axis(ax: Axes) -> None:
    """A log scale with plain numbers at 1, 2, 3 and 5 of every decade, so that a narrow range has labels too."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _dot(ax: Axes, place: int, scores: Scores, style: LineStyle) -> None:
    found = estimate(scores)
    interval = found.interval if len(scores.pairs) > 1 else Interval(found.value, found.value)
    # The percentile interval need not contain the estimate, and bars of negative length are refused.
    ends = [100 * end for end in interval]
    ax.plot(ends, [place, place], color=style.colour, linewidth=2.2, solid_capstyle="butt")
    ax.plot([100 * found.value], [place], style.marker, color=style.colour, markersize=7, markeredgecolor="white")


def _finish(figure: Figure, axes: list[Axes], comparison: Comparison) -> Figure:
    """One legend below all panels, in the order of the controllers."""
    styles = line_styles(comparison)
    handles = [
        axes[0].plot([], [], color=styles[c.name].colour, linestyle=styles[c.name].dash, linewidth=2.5)[0]
        for c in comparison.controllers
    ]
    labels = [_shorten(controller.label) for controller in comparison.controllers]
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if max(map(len, labels)) <= 18 else 2)
    return figure


def _varies(comparison: Comparison, name: str) -> bool:
    """Whether any controller changes the figure during an episode, or two controllers differ in it."""
    values = itertools.chain.from_iterable(e.series(name)[1] for c in comparison.controllers for e in c.episodes)
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and not math.isclose(min(finite), max(finite), rel_tol=1e-3)


def _shorten(label: str) -> str:
    """Labels stay within half of the figure; `$` would start a formula."""
    return (label if len(label) <= 32 else label[:31] + "…").replace("$", r"\$")
