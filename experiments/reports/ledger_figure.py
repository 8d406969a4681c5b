"""Figure of a run's ledger: ε after each round, and the noise multipliers that it was bought with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.records.ledger_file import RunRecord
from experiments.reports.drawing import COLOURS, GREY, STYLE, footnote
from fl_core.privacy.ledger import Ledger
from fl_core.run.basis import basis_text


def ledger_figure(record: RunRecord) -> Figure:
    """Draw ε after each round (certified, indicative, claimed), with the noise multipliers below."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 6.4), layout="constrained")
        FigureCanvasAgg(figure)
        top, bottom = figure.subplots(2, 1, sharex=True)
        _epsilons(top, record)
        _noise(bottom, record.ledger)
        bottom.set_xlabel("communication round")
        bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
        ledger = record.ledger
        basis = basis_text(ledger.adjacency, record.facts.placement, ledger.sampling_rate)
        return footnote(figure, f"ε holds for {basis}.")


def _epsilons(ax: Axes, record: RunRecord) -> None:
    ledger, claim, facts = record.ledger, record.claim, record.facts
    rounds = [charge.round + 1 for charge in ledger.charges]
    if claim is not None:
        _line(ax, rounds, claim.epsilon_after_rounds(), COLOURS[1], "claimed by the paper's accounting", "--")
        name = "by the noise on the updates" + ("; more is uncovered" if facts.uncovered else ", certified")
        _line(ax, rounds, ledger.epsilon_of_noise_after_rounds(), COLOURS[0], name)
    else:
        _line(ax, rounds, ledger.epsilon_after_rounds(), COLOURS[0], f"spent of the target ({ledger.accountant})")
        if ledger.sampling_rate < 1:
            standing = "valid here" if facts.noise_in_advance else "indicative only"
            name = f"RDP at its best order, {standing}"
            _line(ax, rounds, ledger.epsilon_of_noise_after_rounds(), COLOURS[2], name, ":")
            last = ledger.epsilon_by("pld")
            if math.isfinite(last):
                ax.plot(rounds[-1:], [last], "D", color=COLOURS[2], label=f"PLD at the end, {standing}")
    target = record.budget.epsilon
    if math.isfinite(target):
        ax.axhline(target, color=GREY, linewidth=1.2, linestyle=(0, (6, 3)))
        corner = ax.get_yaxis_transform()
        ax.text(0.01, target, f"target ε = {target:g}", transform=corner, va="bottom", color=GREY)
        ax.set_ylim(0, max(ax.get_ylim()[1], target * 1.12))
    if not ax.get_legend_handles_labels()[0]:
        ax.text(0.5, 0.5, "no ε is finite: there is no noise", transform=ax.transAxes, ha="center", color=GREY)
    ax.set_title("Privacy spent after each round")
    ax.set_ylabel(f"ε (δ = {ledger.delta:g})".replace("e-0", "e-"))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower right")


def _noise(ax: Axes, ledger: Ledger) -> None:
    rounds = [charge.round + 1 for charge in ledger.charges]
    joint = [charge.noise_multiplier for charge in ledger.charges]
    _line(ax, rounds, joint, COLOURS[0], "all of a round's releases together")
    names = list(dict.fromkeys(release.name for charge in ledger.charges for release in charge.releases))
    if len(names) > 1:
        for name, colour in zip(names, COLOURS[1:], strict=False):
            found = [
                (charge.round + 1, release.noise_multiplier)
                for charge in ledger.charges
                for release in charge.releases
                if release.name == name
            ]
            _line(ax, [one for one, _ in found], [sigma for _, sigma in found], colour, name, "--")
        ax.legend(loc="best")
    everything = [release.noise_multiplier for charge in ledger.charges for release in charge.releases] + joint
    values = [value for value in everything if 0 < value < math.inf]
    if values and max(values) > 1.5 * min(values):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    elif values:
        ax.set_ylim(0, 1.25 * max(values))
    ax.set_title("Noise multiplier of each round")
    ax.set_ylabel("noise std / sensitivity")


def _line(ax: Axes, rounds: Sequence[int], values: Sequence[float], colour: str, label: str, dash: str = "-") -> None:
    """Draw a curve of the finite values; a single point gets a marker."""
    pairs = [(x, y) for x, y in zip(rounds, values, strict=True) if math.isfinite(y)]
    if pairs:
        x, y = zip(*pairs, strict=True)
        ax.plot(x, y, dash, color=colour, label=label, linewidth=2, marker="o" if len(x) == 1 else "")
