"""Summary of a comparison: one row per controller, with intervals, paired differences, regret, ε and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.records.comparison import Comparison, ControllerResult
from experiments.records.costs import composed_epsilon
from experiments.statistics.resampling import (
    LEVEL,
    RESAMPLES,
    Difference,
    Estimate,
    Interval,
    Profile,
    Scores,
    estimate,
    paired_difference,
    performance_profile,
    probability_of_improvement,
)
from fl_core.base.arrays import FloatArray

BUDGET_TOLERANCE = 0.01
"""Relative difference in ε up to which two budgets count as equal."""

PROFILE_STEPS = 101


@dataclass(frozen=True)
class Spent:
    """ε of the runs that share a target; different targets are never averaged."""

    target: float
    mean: float
    """Mean over runs of the ε that the ledger counted."""
    largest: float
    largest_pld: float


@dataclass(frozen=True)
class Regret:
    """Gap of a controller to the best of some others on one instance; the best is chosen there, afterwards."""

    instance: str
    best: str
    """Label of the controller with the highest mean on this instance."""
    behind: Difference
    """The best's metric minus the controller's, on the same seeds; its interval takes the best as given."""


@dataclass(frozen=True)
class Row:
    """Metrics of one controller of a comparison. Accuracies are shares in [0, 1]."""

    name: str
    label: str
    learned: bool
    trainings: int
    """Number of trainings that played, 1 for a controller that is not trained."""
    pairs: int
    """Instances times seeds, which every training played."""
    global_accuracy: Estimate
    """Interquartile mean over all runs, like `personal_accuracy`."""
    personal_accuracy: Estimate
    judged_by: str
    """Metric that decides, see `Comparison`."""
    difference: Difference | None
    """That metric minus the baseline's, paired; None for the baseline itself."""
    global_difference: Difference | None
    personal_difference: Difference | None
    improvement: Estimate | None
    """Probability of improvement over the baseline in that metric."""
    hindsight_regret: tuple[Regret, ...]
    """By instance, behind the best fixed clip norm in hindsight; () where no such norms were played."""
    tuned_regret: tuple[Regret, ...]
    """By instance, behind the best of the controllers that a search had tuned before; () where there is none."""
    spent: tuple[Spent, ...]
    """ε by target."""
    training_rounds: int | None
    """Federated rounds of its training; None where that is unknown."""
    search_rounds: int
    search_epsilon: float | None
    """ε that training and search would have cost on private clients; None where that is unknown."""
    diverged: int
    """Runs that diverged."""
    unequal: bool
    """True if its ε makes it incomparable: another target, or more than 1 % above the target."""
    budget_note: str
    """Note on its ε, "" if it kept to the target and used it up."""

    @property
    def runs(self) -> int:
        """Number of episodes."""
        return self.trainings * self.pairs

    @property
    def crash_rate(self) -> float:
        """Share of the runs that diverged."""
        return self.diverged / self.runs

    @property
    def judged(self) -> Estimate:
        """Interquartile mean of the metric that decides."""
        return self.global_accuracy if self.judged_by == "global_accuracy" else self.personal_accuracy


def default_baseline(comparison: Comparison) -> str:
    """Choose the controller that the others are measured against: best-fixed, else a fixed clip, else the first."""
    names = [controller.name for controller in comparison.controllers]
    for prefix in ("best-fixed", "fixed"):
        for name in names:
            if name.startswith(prefix):
                return name
    return names[0]


def summarise(comparison: Comparison, baseline_name: str | None = None) -> list[Row]:
    """Summarise a comparison: one row per controller, in the comparison's order.

    Raises:
        InputError: no controller has the baseline's name, or two controllers ran on different seeds.
    """
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    return [_row(comparison, controller, baseline) for controller in comparison.controllers]


def _row(comparison: Comparison, controller: ControllerResult, baseline: ControllerResult) -> Row:
    personal = Scores.of(controller, "personal_accuracy", comparison.drawn)
    whole = Scores.of(controller, "global_accuracy", comparison.drawn)
    judged = Scores.of(controller, comparison.judged_by, comparison.drawn)
    other = None if controller.name == baseline.name else baseline
    rival = Scores.of(baseline, comparison.judged_by, comparison.drawn)
    unequal, note = budget_note(comparison, controller)
    return Row(
        name=controller.name,
        label=controller.label,
        learned=controller.learned,
        trainings=judged.trainings,
        pairs=len(judged.pairs),
        global_accuracy=estimate(whole),
        personal_accuracy=estimate(personal),
        judged_by=comparison.judged_by,
        difference=paired_difference(judged, rival) if other else None,
        global_difference=paired_difference(whole, Scores.of(other, "global_accuracy", comparison.drawn))
        if other
        else None,
        personal_difference=paired_difference(personal, Scores.of(other, "personal_accuracy", comparison.drawn))
        if other
        else None,
        improvement=probability_of_improvement(judged, rival) if other else None,
        hindsight_regret=regrets(comparison, controller, fixed_in_hindsight(comparison)),
        tuned_regret=regrets(comparison, controller, tuned_family(comparison)),
        spent=spent_by_target(comparison, controller),
        training_rounds=controller.training_rounds,
        search_rounds=controller.search_rounds,
        search_epsilon=search_epsilon(comparison, controller),
        diverged=sum(episode.diverged for episode in controller.episodes),
        unequal=unequal,
        budget_note=note,
    )


# --- Privacy ------------------------------------------------------------------------------------------------------


def search_epsilon(comparison: Comparison, controller: ControllerResult) -> float | None:
    """Compose the ε, at the comparison's δ, of all rounds that trained and tuned a controller, as about one client.

    Returns:
        0 for a controller without training and search, None where its rounds' releases are not known.
    """
    if controller.rounds_before != 0 and not controller.releases:
        return None
    return composed_epsilon(controller.releases, comparison.delta)


def spent_by_target(comparison: Comparison, controller: ControllerResult) -> tuple[Spent, ...]:
    """Summarise the ε of a controller's runs by their target, the lowest first."""
    found = []
    for target in sorted(set(comparison.targets.values())):
        runs = [e for e in controller.episodes if comparison.targets[e.instance] == target]
        if runs:
            spent = [e.epsilon_spent for e in runs]
            mean = math.fsum(spent) / len(spent) if all(map(math.isfinite, spent)) else math.inf
            found.append(Spent(target, mean, max(spent), max(e.epsilon_pld for e in runs)))
    return tuple(found)


def budget_note(comparison: Comparison, controller: ControllerResult) -> tuple[bool, str]:
    """Judge a controller's ε: (True if it must not be compared with the others, a note on its ε).

    The note is "" where it kept to the target and used it up.
    """
    own, target = controller.epsilon_target, comparison.epsilon
    if own is not None and not math.isclose(own, target, rel_tol=BUDGET_TOLERANCE):
        return True, f"has another target, ε = {own:g} instead of {target:g}"
    notes = []
    for spent in spent_by_target(comparison, controller):
        worst = max(spent.largest, spent.largest_pld)
        if worst > spent.target * (1 + BUDGET_TOLERANCE):
            return True, f"spent up to ε = {worst:.4g}, above the target of {spent.target:g}"
        notes += _unspent(comparison, controller, spent.target)
    return False, "; ".join(notes)


def _unspent(comparison: Comparison, controller: ControllerResult, target: float) -> list[str]:
    if not math.isfinite(target):
        return []
    runs = [e.epsilon_spent for e in controller.episodes if comparison.targets[e.instance] == target]
    low = [value for value in runs if value < target * (1 - BUDGET_TOLERANCE)]
    what = "seeds" if len(runs) == len(controller.episodes) and not controller.trainings[1:] else "runs"
    words = f"spent less than the target of {target:g} on {len(low)} of {len(runs)} {what}"
    return [f"{words} (least {min(low):.4g})"] if low else []


# --- Regret -------------------------------------------------------------------------------------------------------


def fixed_in_hindsight(comparison: Comparison) -> tuple[ControllerResult, ...]:
    """List the fixed clip norms played on the held-out runs themselves; () where none were."""
    if not comparison.hindsight:
        return ()
    played = [c for c in comparison.controllers if c.name.partition(":")[0] in ("fixed", "best-fixed")]
    return (*comparison.hindsight, *_comparable(comparison, played))


def tuned_family(comparison: Comparison) -> tuple[ControllerResult, ...]:
    """List the controllers that a search, but no training, had tuned."""
    return _comparable(comparison, [c for c in comparison.controllers if c.search_rounds and not c.learned])


def _comparable(comparison: Comparison, controllers: Sequence[ControllerResult]) -> tuple[ControllerResult, ...]:
    return tuple(controller for controller in controllers if not budget_note(comparison, controller)[0])


def regrets(
    comparison: Comparison, controller: ControllerResult, others: Sequence[ControllerResult]
) -> tuple[Regret, ...]:
    """Compute the regret of a controller to the best of the others, chosen for each instance; ties go to the first.

    In the comparison's order of the instances.
    """
    if not others:
        return ()
    metric, found = comparison.judged_by, []
    own = Scores.of(controller, metric, comparison.drawn)
    tables = [(other.label, Scores.of(other, metric, comparison.drawn)) for other in others]
    met = {name for name, _ in own.pairs}
    for instance in (name for name in comparison.targets if name in met):
        label, best = max(tables, key=lambda table: float(table[1].on(instance).values.mean()))
        found.append(Regret(instance, label, paired_difference(best.on(instance), own.on(instance))))
    return tuple(found)


# --- Profiles and records -----------------------------------------------------------------------------------------


def profile_thresholds(comparison: Comparison) -> FloatArray:
    """Choose the accuracies at which profiles are taken: from just below the worst run to the best."""
    scores = [
        Scores.of(controller, comparison.judged_by, comparison.drawn).flat for controller in comparison.controllers
    ]
    everything = np.concatenate(scores)
    margin = (everything.max() - everything.min()) / PROFILE_STEPS or 0.01
    return np.linspace(everything.min() - margin, everything.max(), PROFILE_STEPS)


def profile(comparison: Comparison, controller: ControllerResult) -> Profile:
    """Compute a controller's performance profile in the metric that decides."""
    return performance_profile(
        Scores.of(controller, comparison.judged_by, comparison.drawn), profile_thresholds(comparison)
    )


def statistics_record(comparison: Comparison, baseline_name: str | None = None) -> dict[str, Any]:
    """Collect all statistics of a report as JSON-able values."""
    baseline = baseline_name or default_baseline(comparison)
    rows = []
    for row, controller in zip(summarise(comparison, baseline), comparison.controllers, strict=True):
        curve = profile(comparison, controller)
        rows.append(
            {
                **{name: _spelled(value) for name, value in asdict(row).items()},
                "runs": row.runs,
                "crash_rate": row.crash_rate,
                "profile": {name: value.tolist() for name, value in vars(curve).items()},
            }
        )
    return {"baseline": baseline, "level": LEVEL, "resamples": RESAMPLES, "controllers": rows}


def _spelled(value: Any) -> Any:
    """Convert intervals to objects with the names of their ends, at any depth."""
    if isinstance(value, Interval):
        return value._asdict()
    if isinstance(value, dict):
        return {name: _spelled(entry) for name, entry in value.items()}
    return [_spelled(entry) for entry in value] if isinstance(value, (list, tuple)) else value
