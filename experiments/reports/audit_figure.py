"""Figure of an audit: scores of canaries that are out and in, beside their distributions as claimed."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from experiments.reports.drawing import STYLE
from fl_core.audit.canaries import CanaryScores
from fl_core.base.arrays import FloatArray

_OUT, _IN = "#0072B2", "#D55E00"


def score_figure(canaries: CanaryScores, title: str) -> Figure:
    """Draw histograms of both kinds of scores, with the claimed densities as lines."""
    outside, inside = canaries.scores[~canaries.included], canaries.scores[canaries.included]
    lengths = canaries.lengths[canaries.included]
    edges = _edges(canaries).tolist()
    grid = np.linspace(edges[0], edges[-1], 400)
    claimed_in = stats.norm.pdf(grid[:, None], lengths[None, :]).mean(1)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.subplots()
        ax.hist(outside, edges, density=True, color=_OUT, alpha=0.35, label=f"out, {len(outside)} canaries")
        ax.hist(inside, edges, density=True, color=_IN, alpha=0.35, label=f"in, {len(inside)} canaries")
        ax.plot(grid, stats.norm.pdf(grid), color=_OUT, label="out, as claimed")
        ax.plot(grid, claimed_in, color=_IN, linestyle="--", label="in, as claimed")
        ax.set_title(title)
        ax.set_xlabel("score of a canary (std of the claimed noise)")
        ax.set_ylabel("density")
        ax.set_ylim(0, 1.45 * ax.get_ylim()[1])
        ax.legend(ncols=2, loc="upper left")
        return figure


def _edges(canaries: CanaryScores) -> FloatArray:
    """Choose the edges of some thirty bins that hold all scores and most of the claimed densities."""
    low = min(-3.0, float(canaries.scores.min()))
    high = max(3.0, float(canaries.scores.max()), float(canaries.lengths.max()) + 3.0)
    return np.linspace(low, high, 32)
