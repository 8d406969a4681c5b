"""Figures of a comparison: the controllers' decisions, the accuracies they led to, and their cost in ε."""

from __future__ import annotations

import itertools
import math

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.records.comparison import Comparison
from experiments.reports.drawing import (
    GREY,
    STYLE,
    WIDTH,
    curves,
    footnote,
    legend,
    log_axis,
    panels,
    skip_start,
)
from experiments.reports.pages import CaptionedFigure
from experiments.reports.score_figures import accuracy_figure, instance_figure, judged_models, measured, profile_figure
from experiments.reports.words import MOST_LISTED, basis_sentence, targets_text

MOST_PANELS = 6
"""Most panels below each other in one figure."""
_DECISIONS = {
    "clip_norm": ("Clip norm chosen in each round", "clip norm C (log scale)"),
    "server_learning_rate": ("Server learning rate in each round", "server learning rate"),
    "noise_multiplier": ("Noise multiplier in each round", "noise multiplier σ"),
}
"""Decision -> title and unit."""


def captioned_figures(comparison: Comparison) -> tuple[CaptionedFigure, ...]:
    """Collect the figures of a report, each with the sentences that say what it shows."""
    several = len(comparison.played) > 1
    counted = "the paper's accounting claims" if comparison.guarantee == "as-published" else "the ledger has counted"
    found = [
        CaptionedFigure(
            accuracy_figure,
            "Final accuracy of each controller: interquartile mean (marker), its 95 % interval (bar), every run (dot).",
        )
    ]
    if several:
        words = "Final accuracy on each instance: interquartile mean (marker) and its 95 % interval (bar)."
        found.append(CaptionedFigure(instance_figure, words))
    return (
        *found,
        CaptionedFigure(
            profile_figure,
            "Performance profiles: the share of runs that end above each accuracy, with a 95 % band. A curve further "
            "to the right is better.",
        ),
        CaptionedFigure(
            learning_figure, f"Accuracy while training; the steep start is cut off. {_curve_words(comparison)}"
        ),
        CaptionedFigure(
            control_figure, f"What the controllers decided; clip norms are L2 norms. {_BAND}{_noise_words(comparison)}"
        ),
        CaptionedFigure(
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
    """Draw the controllers' decisions per round: clip norm, and learning rate and noise where they vary.

    A few instances have a panel each, because decisions may depend on them.
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
    """Draw accuracy over the rounds, of the global and of the personal models, or on each of a few instances."""
    instances = _panel_instances(comparison)
    shown: list[tuple[str, str | None]] = [(name, None) for name in measured(comparison)]
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
    """Draw the comparison in one figure: clip norms, and the accuracy they lead to."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.6 * WIDTH, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        curves(left, comparison, "clip_norm", *_DECISIONS["clip_norm"])
        log_axis(left)
        title = f"Accuracy of the {judged_models(comparison)} at {targets_text(comparison)}"
        curves(right, comparison, comparison.judged_by, title, "test accuracy (%)", 100, band=not _pooled(comparison))
        skip_start(right)
        return footnote(legend(figure, left, comparison), basis_sentence(comparison))


def budget_figure(comparison: Comparison) -> Figure:
    """Draw ε after each round, and the target: a panel for each of a few targets, else as shares of them."""
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
            return footnote(legend(figure, axes[0], comparison), basis_sentence(comparison))
        figure, axes = panels(len(by_target))
        for ax, target in zip(axes, sorted(by_target), strict=True):
            curves(ax, comparison, "epsilon_spent", title, label, 1.0, by_target[target])
            if math.isfinite(target):
                _target_line(ax, target, f"target ε = {target:g}")
        return footnote(legend(figure, axes[0], comparison), basis_sentence(comparison))


def _budget_shares(ax: Axes, comparison: Comparison, title: str) -> None:
    """Draw different targets in one panel: ε as a share of the run's own."""
    scales = {name: 0.0 if math.isinf(target) else 100 / target for name, target in comparison.targets.items()}
    curves(ax, comparison, "epsilon_spent", title, "ε spent (% of the target)", scales)
    _target_line(ax, 100, "target of each instance")


def _target_line(ax: Axes, target: float, words: str) -> None:
    ax.axhline(target, color=GREY, linewidth=1.2, linestyle=(0, (6, 3)))
    ax.text(0.01, target, words, transform=ax.get_yaxis_transform(), va="bottom", color=GREY)
    ax.set_ylim(0, max(ax.get_ylim()[1], target * 1.12))


def _panel_instances(comparison: Comparison, each: int = 1) -> list[str | None]:
    """List the instances that have a panel (or `each`) of their own, or [None] for one panel for all."""
    names: list[str | None] = [one.name for one in comparison.played]
    return names if 1 < len(names) <= MOST_PANELS // each else [None]


def _pooled(comparison: Comparison) -> bool:
    """Return True if curves pool more instances than can have a panel each: bands would show their differences."""
    return len(comparison.played) > 1 and _panel_instances(comparison) == [None]


def _decisions(comparison: Comparison) -> list[str]:
    """List the decisions that are drawn: the clip norm, and others that vary."""
    return [name for name in _DECISIONS if name == "clip_norm" or _varies(comparison, name)]


def _varies(comparison: Comparison, name: str) -> bool:
    """Return True if a metric changes during a run or, where there is one setting only, between two."""
    series = [episode.series(name)[1] for one in comparison.controllers for episode in one.episodes]
    if len(comparison.played) <= 1:
        series = [list(itertools.chain.from_iterable(series))]
    finite = [[value for value in values if math.isfinite(value)] for values in series]
    return any(values and not math.isclose(min(values), max(values), rel_tol=1e-3) for values in finite)
