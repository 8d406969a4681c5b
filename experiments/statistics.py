"""Statistics of a comparison that a sceptic accepts: robust means, intervals over seeds, paired differences.

Sources: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (interquartile
mean, percentile bootstrap, probability of improvement); Efron 1979 (bootstrap). Two controllers on one seed meet the
same partition, cohorts, batches and noise, so differences are taken per seed before anything is averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from experiments.results import JUDGED_BY, Comparison, ControllerResult
from fl_core.errors import require

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Reduces the last axis: [..., n] -> [...]."""

BUDGET_TOLERANCE = 0.01
"""Relative difference in ε up to which two budgets count as equal."""

MINIMUM_PAIRS = 6
"""Pairs needed to claim a difference. With n pairs all of one sign happen by chance with probability 2/2ⁿ, which is
above 5 % for n < 6 although the bootstrap interval, which cannot leave the range of the data, then excludes zero."""


class Interval(NamedTuple):
    """A confidence interval, ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much a controller is ahead of another on the same seeds, in accuracy (0.01 is one point)."""

    mean: float
    interval: Interval
    """95 % bootstrap interval of the mean over pairs."""
    pairs: int

    @property
    def sign(self) -> int:
        """1 or −1 where the interval lies above or below zero and there are pairs enough to say so, else 0."""
        if self.pairs < MINIMUM_PAIRS:
            return 0
        return int(self.interval.low > 0) - int(self.interval.high < 0)


def interquartile_mean(values: ArrayLike) -> Floats:
    """Mean over the last axis of the middle half of the values.

    As `scipy.stats.trim_mean(values, 0.25)` and rliable: ⌊n/4⌋ values are cut at each end and the rest weighs equally,
    so where n is no multiple of 4 slightly more than half is kept, and below n = 4 it is the plain mean.
    """
    return np.asarray(scipy.stats.trim_mean(np.asarray(values, dtype=np.float64), 0.25, axis=-1))


def average(values: ArrayLike) -> Floats:
    """Plain mean over the last axis."""
    return np.asarray(np.mean(np.asarray(values, dtype=np.float64), axis=-1))


def bootstrap_interval(
    values: ArrayLike, statistic: Statistic, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of a statistic of one sample (`scipy.stats.bootstrap`, method "percentile").

    The values are sorted first, so that their order does not matter. One value, which scipy refuses, and equal values
    give an interval of width zero.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    require(sample.ndim == 1 and sample.size > 0, "A bootstrap needs at least one value.")
    require(bool(np.isfinite(sample).all()), "A bootstrap needs finite values.")
    index = np.random.default_rng(seed).integers(0, sample.size, (resamples, sample.size))
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(sample[index]), [tail, 1 - tail])
    return Interval(float(low), float(high))


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Difference:
    """a − b per seed: its mean and 95 % interval, resampled over pairs.

    Args:
        a: seed -> figure, as `ControllerResult.by_seed` gives it.
        b: the same seeds of the other controller.

    Raises:
        InputError: the seeds differ.
    """
    first, second = _pairs(a, b)
    differences = first - second
    return Difference(float(differences.mean()), bootstrap_interval(differences, average), differences.size)


def probability_of_improvement(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Share of the common seeds on which a is above b, ties counted half; `InputError` if the seeds differ."""
    first, second = _pairs(a, b)
    return float(np.mean((first > second) + 0.5 * (first == second)))


def _pairs(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[Floats, Floats]:
    alone = sorted(set(a) ^ set(b))
    require(not alone, f"The controllers are compared on the same seeds, but only one of two has seed {alone[:3]}.")
    require(len(a) > 0, "A paired difference needs at least one seed.")
    seeds = sorted(a)
    return np.array([a[seed] for seed in seeds]), np.array([b[seed] for seed in seeds])


@dataclass(frozen=True)
class Row:
    """One controller of a comparison in figures. Accuracies are shares in [0, 1]."""

    name: str
    label: str
    learned: bool
    seeds: int
    global_accuracy: float
    """Interquartile mean over seeds, like `personal_accuracy`."""
    global_interval: Interval
    personal_accuracy: float
    personal_interval: Interval
    judged_by: str
    """Figure that decides, see `Comparison`."""
    difference: Difference | None
    """That figure minus the baseline's, paired; None for the baseline itself."""
    personal_difference: Difference | None
    improvement: float | None
    """Probability of improvement over the baseline in that figure."""
    epsilon_mean: float
    """Mean over seeds of the ε that the ledger counted."""
    epsilon_max: float
    epsilon_pld: float
    """Largest over seeds."""
    training_rounds: int
    search_rounds: int
    diverged: int
    """Episodes that diverged."""
    unequal: bool
    """Whether its ε makes it incomparable: another target, or more than 1 % above the target."""
    budget_note: str
    """What is to be said about its ε, "" if it kept to the target and used it up."""

    @property
    def judged_accuracy(self) -> float:
        """Interquartile mean of the figure that decides."""
        return self.global_accuracy if self.judged_by == "global_accuracy" else self.personal_accuracy

    @property
    def judged_interval(self) -> Interval:
        """Its interval."""
        return self.global_interval if self.judged_by == "global_accuracy" else self.personal_interval


def default_baseline(comparison: Comparison) -> str:
    """The controller that the others are measured against: best-fixed, else a fixed clip, else the first."""
    names = [controller.name for controller in comparison.controllers]
    for prefix in ("best-fixed", "fixed"):
        for name in names:
            if name.startswith(prefix):
                return name
    return names[0]


def summarise(comparison: Comparison, baseline_name: str | None = None) -> list[Row]:
    """One row per controller, in the comparison's order.

    Raises:
        InputError: no controller has the baseline's name, or two controllers ran on different seeds.
    """
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    return [_row(comparison, controller, baseline) for controller in comparison.controllers]


def _row(comparison: Comparison, controller: ControllerResult, baseline: ControllerResult) -> Row:
    accuracy, personal = controller.by_seed(), controller.by_seed("personal_accuracy")
    judged = controller.by_seed(comparison.judged_by)
    values, personal_values = list(accuracy.values()), list(personal.values())
    other = None if controller.name == baseline.name else baseline
    unequal, note = budget_note(comparison, controller)
    spent = controller.by_seed("epsilon_spent").values()
    return Row(
        name=controller.name,
        label=controller.label,
        learned=controller.learned,
        seeds=len(values),
        global_accuracy=float(interquartile_mean(values)),
        global_interval=bootstrap_interval(values, interquartile_mean),
        personal_accuracy=float(interquartile_mean(personal_values)),
        personal_interval=bootstrap_interval(personal_values, interquartile_mean),
        judged_by=comparison.judged_by,
        difference=paired_difference(judged, other.by_seed(comparison.judged_by)) if other else None,
        personal_difference=paired_difference(personal, other.by_seed("personal_accuracy")) if other else None,
        improvement=probability_of_improvement(judged, other.by_seed(comparison.judged_by)) if other else None,
        epsilon_mean=math.fsum(spent) / len(values),
        epsilon_max=max(spent),
        epsilon_pld=max(controller.by_seed("epsilon_pld").values()),
        training_rounds=controller.training_rounds,
        search_rounds=controller.search_rounds,
        diverged=sum(episode.diverged for episode in controller.episodes),
        unequal=unequal,
        budget_note=note,
    )


def budget_note(comparison: Comparison, controller: ControllerResult) -> tuple[bool, str]:
    """Whether the controller's ε forbids comparing it with the others, and what is to be said about its ε."""
    target = comparison.epsilon
    own = target if controller.epsilon_target is None else controller.epsilon_target
    spent = list(controller.by_seed("epsilon_spent").values())
    worst = max(spent + list(controller.by_seed("epsilon_pld").values()))
    if own != target and not math.isclose(own, target, rel_tol=BUDGET_TOLERANCE):
        return True, f"has another target, ε = {own:g} instead of {target:g}"
    if worst > target * (1 + BUDGET_TOLERANCE):
        return True, f"spent up to ε = {worst:.4g}, above the target of {target:g}"
    low = [value for value in spent if value < target * (1 - BUDGET_TOLERANCE)]
    if math.isfinite(target) and low:
        return (
            False,
            f"spent less than the target of {target:g} on {len(low)} of {len(spent)} seeds (least {min(low):.4g})",
        )
    return False, ""


def percent(value: float, interval: Interval | None = None) -> str:
    """An accuracy in per cent, with its interval where there is one: "81.2 [80.1, 82.0]"."""
    return f"{100 * value:.1f}" + (f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else "")


def points(difference: Difference) -> str:
    """A difference in percentage points: "+2.1 [+1.0, +3.2]"; without an interval for a single pair."""
    low, high = difference.interval
    interval = f" [{_signed(low)}, {_signed(high)}]" if difference.pairs > 1 else ""
    return _signed(difference.mean) + interval


def _signed(share: float) -> str:
    text = f"{100 * share:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def verdict(comparison: Comparison, baseline_name: str | None = None) -> str:
    """Who won, in one paragraph made from the numbers alone; rows at unequal ε take no part."""
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    rows = summarise(comparison, baseline.name)
    equal = [row for row in rows if not row.unequal]
    parts = [f"{row.label} is left out of this verdict: it {row.budget_note}." for row in rows if row.unequal]
    if equal:
        parts = [*_winner(comparison, equal), *_learned(rows, baseline), *parts]
    else:
        parts.insert(0, "No controller kept to the ε target, so nothing can be compared.")
    return " ".join([*parts, *_cost(rows), *_diverged(rows)])


def _winner(comparison: Comparison, rows: list[Row]) -> list[str]:
    top = max(row.judged_accuracy for row in rows)
    best = [row for row in rows if math.isclose(row.judged_accuracy, top, abs_tol=1e-9)]
    which = JUDGED_BY[comparison.judged_by]
    first = best[0]
    several = first.seeds > 1
    value = f"{percent(top)} %" + (
        f" (95 % interval {percent(first.judged_interval.low)} to {percent(first.judged_interval.high)}, "
        f"{first.seeds} seeds)"
        if several and len(best) == 1
        else ""
    )
    if len(rows) == 1:
        parts = [
            f"Only {first.label} was run at this ε, so there is nothing to compare: {value} final {which} accuracy."
        ]
        return parts if several else [*parts, "One seed: no interval."]
    who = f"{_names(best)} {'has' if len(best) == 1 else 'share'} the highest final {which} accuracy"
    measure = "interquartile mean " if several else ""
    budget = f"ε = {comparison.epsilon:g}" if math.isfinite(comparison.epsilon) else "no privacy limit"
    parts = [f"{who} at {budget}: {measure}{value}."]
    if not several:
        return [*parts, "One seed: no interval, so this is no evidence that any controller is better than another."]
    if first.seeds < MINIMUM_PAIRS:
        return [
            *parts,
            f"{first.seeds} seeds are too few to call any difference significant (at least {MINIMUM_PAIRS}).",
        ]
    return parts + _others(comparison, first, [row for row in rows if row is not first])


def _others(comparison: Comparison, best: Row, others: list[Row]) -> list[str]:
    """How the rest stands to the best on the same seeds."""
    figure = comparison.judged_by
    lead = comparison.controller(best.name).by_seed(figure)
    found = [(row, paired_difference(lead, comparison.controller(row.name).by_seed(figure))) for row in others]
    texts = {sign: ", ".join(f"{row.label} ({points(d)})" for row, d in found if d.sign == sign) for sign in (1, 0, -1)}
    parts = []
    if texts[1]:
        parts.append(f"On the same seeds {best.label} is ahead, in points with 95 % interval, of {texts[1]}.")
    if texts[0]:
        parts.append(
            f"No significant difference from {best.label} (the interval of the lead contains zero): {texts[0]}."
        )
    if texts[-1]:
        parts.append(f"In the plain mean over pairs, though, {best.label} is behind {texts[-1]}.")
    return parts


def _learned(rows: list[Row], baseline: ControllerResult) -> list[str]:
    """Whether each learned controller beats the baseline."""
    blocked = any(row.unequal for row in rows if row.name == baseline.name)
    parts = []
    for row in rows:
        if not row.learned or row.difference is None or row.improvement is None or row.unequal or blocked:
            continue
        better = f"{points(row.difference)} points; ahead on {100 * row.improvement:.0f} % of the seeds, ties half"
        if row.difference.pairs < MINIMUM_PAIRS:
            fact = f"against {baseline.label} stands at {better}: too few seeds to say whether it beats it"
        else:
            words = {1: "beats", 0: "shows no significant difference from", -1: "loses to"}[row.difference.sign]
            fact = f"{words} {baseline.label} ({better})"
        parts.append(f"{row.label}, which is learned, {fact}.")
    return parts


def _cost(rows: list[Row]) -> list[str]:
    costs = [
        f"{row.label} {count:,} for {kind}"
        for row in rows
        for count, kind in ((row.training_rounds, "training"), (row.search_rounds, "search"))
        if count
    ]
    return [f"Rounds spent beforehand: {', '.join(costs)}; none for the others."] if costs else []


def _diverged(rows: list[Row]) -> list[str]:
    parts = [f"{row.label} on {row.diverged} of {row.seeds} seeds" for row in rows if row.diverged]
    return [f"Diverged: {', '.join(parts)}."] if parts else []


def _names(rows: list[Row]) -> str:
    labels = [row.label for row in rows]
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
