"""Figures of a comparison's final accuracies: by controller, by instance, and as performance profiles."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.records.comparison import Comparison
from experiments.reports.drawing import STYLE, WIDTH, LineStyle, legend, line_styles, panels, wrapped
from experiments.statistics.resampling import Interval, Scores, estimate
from experiments.statistics.summary import profile

_SPOTS = {"global_accuracy": "Global model", "personal_accuracy": "Personal models"}


def accuracy_figure(comparison: Comparison) -> Figure:
    """Draw final accuracies: interquartile mean with 95 % interval, and every run as a faint dot."""
    styles = line_styles(comparison)
    labels = [wrapped(controller.label, 20) for controller in comparison.controllers]
    count = len(labels)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.5 + 0.45 * count), layout="constrained")
        FigureCanvasAgg(figure)
        names = measured(comparison)
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for ax, name in zip(axes, names, strict=True):
            for place, controller in enumerate(comparison.controllers):
                style = styles[controller.name]
                scores = Scores.of(controller, name, comparison.drawn)
                dots = 100 * scores.flat
                ax.plot(dots, [place] * len(dots), ".", color=style.colour, alpha=0.25, markeredgewidth=0)
                _dot(ax, place, scores, style)
            ax.set_title(_SPOTS[name])
            _accuracy_axis(ax)
        axes[0].set_yticks(range(count), labels)
        axes[0].set_ylim(count - 0.5, -0.5)  # the first controller on top
        return figure


def instance_figure(comparison: Comparison) -> Figure:
    """Draw the accuracy that decides on each instance: every controller's interquartile mean and interval."""
    styles = line_styles(comparison)
    names = [one.name for one in comparison.played]
    spots = np.linspace(-0.32, 0.32, len(styles)) if len(styles) > 1 else np.zeros(1)
    labels = [wrapped(_unbroken(name), 36, lines=5) for name in names]
    lines = max(label.count("\n") + 1 for label in labels)
    height = max(0.42, 0.12 * len(styles), 0.16 * lines + 0.1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.8 + height * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.subplots()
        for controller, spot in zip(comparison.controllers, spots, strict=True):
            scores = Scores.of(controller, comparison.judged_by, comparison.drawn)
            for place, name in enumerate(names):
                _dot(ax, place + spot, scores.on(name), styles[controller.name], size=5.5)
        for place in range(1, len(names)):
            ax.axhline(place - 0.5, color="#e4e4e4", linewidth=0.8)
        _accuracy_axis(ax, f"final test accuracy of the {judged_models(comparison)} (%)")
        ax.set_yticks(range(len(names)), labels, fontsize=11 if lines == 1 else 9.5)
        ax.set_ylim(len(names) - 0.5, -0.5)
        return legend(figure, ax, comparison, markers=True)


def profile_figure(comparison: Comparison) -> Figure:
    """Draw performance profiles: the share of runs above each accuracy, with a pointwise 95 % band."""
    styles = line_styles(comparison)
    with mpl.rc_context(STYLE):
        figure, axes = panels(1)
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
            if len(Scores.of(controller, comparison.judged_by, comparison.drawn).pairs) > 1:
                ax.fill_between(
                    100 * found.thresholds,
                    100 * found.low,
                    100 * found.high,
                    color=style.colour,
                    alpha=0.11,
                    linewidth=0,
                    step="post",
                )
        ax.set_title("Runs that end above each accuracy")
        ax.set_xlabel(f"final test accuracy of the {judged_models(comparison)} (%)")
        ax.set_ylabel("share of runs (%)")
        ax.set_ylim(-3, 103)
        return legend(figure, ax, comparison)


def measured(comparison: Comparison) -> list[str]:
    """List the meaningful accuracies: not the server's where part of the model stays on the clients."""
    return [name for name in _SPOTS if name in (comparison.judged_by, "personal_accuracy")]


def judged_models(comparison: Comparison) -> str:
    """Name the models whose accuracy decides."""
    return "global model" if comparison.judged_by == "global_accuracy" else "personal models"


def _accuracy_axis(ax: Axes, label: str = "final test accuracy (%)") -> None:
    ax.set_xlabel(label)
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _dot(ax: Axes, place: float, scores: Scores, style: LineStyle, size: float = 7) -> None:
    found = estimate(scores)
    interval = found.interval if len(scores.pairs) > 1 else Interval(found.value, found.value)
    # The percentile interval need not contain the estimate, and bars of negative length are refused.
    ends = [100 * end for end in interval]
    ax.plot(ends, [place, place], color=style.colour, linewidth=size * 0.31, solid_capstyle="butt")
    ax.plot([100 * found.value], [place], style.marker, color=style.colour, markersize=size, markeredgecolor="white")


def _unbroken(name: str) -> str:
    """Rewrite an instance's name so that it is broken after its commas only."""
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in name.split(", "))
