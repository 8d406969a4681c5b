"""Figures of a comparison: what the controllers did, what came of it, what it cost in ε."""

from __future__ import annotations

import itertools
import math

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from experiments.records.comparison import Comparison
from experiments.reports.drawing import (
    GREY,
    STYLE,
    WIDTH,
    LineStyle,
    curves,
    legend,
    line_styles,
    log_axis,
    panels,
    skip_start,
    wrapped,
)
from experiments.reports.pages import Picture
from experiments.reports.words import MOST_LISTED, targets_text
from experiments.statistics.resampling import Interval, Scores, estimate
from experiments.statistics.summary import profile

MOST_PANELS = 6
"""Most panels below each other in one figure."""
_DECISIONS = {
    "clip_norm": ("Clip norm chosen in each round", "clip norm C (log scale)"),
    "server_learning_rate": ("Server learning rate in each round", "server learning rate"),
    "noise_multiplier": ("Noise multiplier in each round", "noise multiplier σ"),
}
"""Decision -> title and unit."""
_SPOTS = {"global_accuracy": "Global model", "personal_accuracy": "Personal models"}


def pictures(comparison: Comparison) -> tuple[Picture, ...]:
    """The figures of a report, each with the sentences that say what it shows."""
    several = len(comparison.played) > 1
    counted = "the paper's accounting claims" if comparison.guarantee == "as-published" else "the ledger has counted"
    found = [
        Picture(
            accuracy_figure,
            "Final accuracy of each controller: interquartile mean (marker), its 95 % interval (bar), every run (dot).",
        )
    ]
    if several:
        words = "Final accuracy on each instance: interquartile mean (marker) and its 95 % interval (bar)."
        found.append(Picture(instance_figure, words))
    return (
        *found,
        Picture(
            profile_figure,
            "Performance profiles: the share of runs that end above each accuracy, with a 95 % band. A curve further "
            "to the right is better.",
        ),
        Picture(learning_figure, f"Accuracy while training; the steep start is cut off. {_curve_words(comparison)}"),
        Picture(
            control_figure, f"What the controllers decided; clip norms are L2 norms. {_BAND}{_noise_words(comparison)}"
        ),
        Picture(
            budget_figure,
            f"Privacy budget: the ε that {counted} after each round. Controllers that spend alike lie on each other.",
        ),
    )


_BAND = "Lines are medians over runs, bands reach from 10 % to 90 % of them."


def _curve_words(comparison: Comparison) -> str:
    return "Lines are medians over the runs of all instances." if _pooled(comparison) else _BAND


def _noise_words(comparison: Comparison) -> str:
    if "noise_multiplier" not in _decisions(comparison):
        return ""
    return " A controller that pays for what it sees has a higher σ."


def control_figure(comparison: Comparison) -> Figure:
    """What the controllers decided per round: clip norm, and learning rate and noise where they vary.

    A few instances have a panel each, because what is decided may depend on them.
    """
    names = _decisions(comparison)
    instances = _panel_instances(comparison, len(names))
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(names) * len(instances))
        for ax, (name, instance) in zip(axes, itertools.product(names, instances), strict=True):
            title, unit = _DECISIONS[name]
            only = None if instance is None else (instance,)
            curves(ax, comparison, name, title if instance is None else f"{title}: {instance}", unit, 1.0, only)
            if name == "clip_norm":
                log_axis(ax)
        return legend(figure, axes[0], comparison)


def learning_figure(comparison: Comparison) -> Figure:
    """Accuracy over the rounds: of the global and of the personal models, or on each of a few instances."""
    instances = _panel_instances(comparison)
    shown: list[tuple[str, str | None]] = [(name, None) for name in _measured(comparison)]
    if instances != [None]:
        shown = [(comparison.judged_by, instance) for instance in instances]
    titles = {
        "global_accuracy": "Accuracy of the global model",
        "personal_accuracy": "Accuracy of the personal models, mean over clients",
    }
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(shown))
        for ax, (name, instance) in zip(axes, shown, strict=True):
            title = titles[name] if instance is None else f"{titles[name].partition(',')[0]}: {instance}"
            only = None if instance is None else (instance,)
            curves(ax, comparison, name, title, "test accuracy (%)", 100, only, band=not _pooled(comparison))
            skip_start(ax)
        return legend(figure, axes[0], comparison)


def overview_figure(comparison: Comparison) -> Figure:
    """The comparison in one picture: clip norms, and the accuracy they lead to."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.6 * WIDTH, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        curves(left, comparison, "clip_norm", *_DECISIONS["clip_norm"])
        log_axis(left)
        title = f"Accuracy of the {_judged(comparison)} at {targets_text(comparison)}"
        curves(right, comparison, comparison.judged_by, title, "test accuracy (%)", 100, band=not _pooled(comparison))
        skip_start(right)
        return legend(figure, left, comparison)


def budget_figure(comparison: Comparison) -> Figure:
    """ε counted after each round, and the target: a panel for each of a few targets, else as shares of them."""
    by_target: dict[float, list[str]] = {}
    for instance, target in comparison.targets.items():
        by_target.setdefault(target, []).append(instance)
    counted = "as the paper counts" if comparison.guarantee == "as-published" else "by the ledger"
    title = f"Privacy budget spent after each round, {counted}"
    label = f"ε spent (δ = {comparison.delta:g})".replace("e-0", "e-")
    with mpl.rc_context(STYLE):
        if len(by_target) > MOST_LISTED:
            figure, axes = panels(1)
            _budget_shares(axes[0], comparison, title)
            return legend(figure, axes[0], comparison)
        figure, axes = panels(len(by_target))
        for ax, target in zip(axes, sorted(by_target), strict=True):
            curves(ax, comparison, "epsilon_spent", title, label, 1.0, by_target[target])
            if math.isfinite(target):
                _target_line(ax, target, f"target ε = {target:g}")
        return legend(figure, axes[0], comparison)


def _budget_shares(ax: Axes, comparison: Comparison, title: str) -> None:
    """Different targets in one panel: ε as a share of the run's own."""
    scales = {name: 0.0 if math.isinf(target) else 100 / target for name, target in comparison.targets.items()}
    curves(ax, comparison, "epsilon_spent", title, "ε spent (% of the target)", scales)
    _target_line(ax, 100, "target of each instance")


def _target_line(ax: Axes, target: float, words: str) -> None:
    ax.axhline(target, color=GREY, linewidth=1.2, linestyle=(0, (6, 3)))
    ax.text(0.01, target, words, transform=ax.get_yaxis_transform(), va="bottom", color=GREY)
    ax.set_ylim(0, max(ax.get_ylim()[1], target * 1.12))


def accuracy_figure(comparison: Comparison) -> Figure:
    """Final accuracies: interquartile mean with 95 % interval, and every run as a faint dot."""
    styles = line_styles(comparison)
    labels = [wrapped(controller.label, 20) for controller in comparison.controllers]
    count = len(labels)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 1.5 + 0.45 * count), layout="constrained")
        FigureCanvasAgg(figure)
        names = _measured(comparison)
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
    """The accuracy that decides on each instance: a line of every controller's interquartile mean and interval."""
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
        _accuracy_axis(ax, f"final test accuracy of the {_judged(comparison)} (%)")
        ax.set_yticks(range(len(names)), labels, fontsize=11 if lines == 1 else 9.5)
        ax.set_ylim(len(names) - 0.5, -0.5)
        return legend(figure, ax, comparison, markers=True)


def profile_figure(comparison: Comparison) -> Figure:
    """Performance profiles: the share of runs above each accuracy, with a pointwise 95 % band."""
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
        ax.set_xlabel(f"final test accuracy of the {_judged(comparison)} (%)")
        ax.set_ylabel("share of runs (%)")
        ax.set_ylim(-3, 103)
        return legend(figure, ax, comparison)


def _measured(comparison: Comparison) -> list[str]:
    """Accuracies that mean something: not the server's where part of the model stays on the clients."""
    return [name for name in _SPOTS if name in (comparison.judged_by, "personal_accuracy")]


def _judged(comparison: Comparison) -> str:
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


def _panel_instances(comparison: Comparison, each: int = 1) -> list[str | None]:
    """Instances that have a panel of their own (or so many each), or [None] where there is one panel for all."""
    names: list[str | None] = [one.name for one in comparison.played]
    return names if 1 < len(names) <= MOST_PANELS // each else [None]


def _pooled(comparison: Comparison) -> bool:
    """Whether curves are drawn over more instances than can have a panel each: bands would show their differences."""
    return len(comparison.played) > 1 and _panel_instances(comparison) == [None]


def _unbroken(name: str) -> str:
    """An instance's name that is broken after its commas only."""
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in name.split(", "))


def _decisions(comparison: Comparison) -> list[str]:
    """Decisions that are drawn: the clip norm, and others that vary."""
    return [name for name in _DECISIONS if name == "clip_norm" or _varies(comparison, name)]


def _varies(comparison: Comparison, name: str) -> bool:
    """Whether a controller changes the figure during a run; where there is one setting only, or two differ in it."""
    series = [episode.series(name)[1] for one in comparison.controllers for episode in one.episodes]
    if len(comparison.played) <= 1:
        series = [list(itertools.chain.from_iterable(series))]
    finite = [[value for value in values if math.isfinite(value)] for values in series]
    return any(values and not math.isclose(min(values), max(values), rel_tol=1e-3) for values in finite)
