"""The runs of a comparison as CSV, for programs: a line for every run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.records.comparison import Comparison
from experiments.records.folder import csv_lines
from experiments.statistics.resampling import Scores
from experiments.statistics.summary import default_baseline

_SHARED = ("task", "method", "dataset", "population", "clients")
_OWN = ("label", "signals", "training_rounds", "search_rounds", "tuned_on", "tuned_population")
_MEASURED = ("global_accuracy", "personal_accuracy", "epsilon_spent", "epsilon_pld", "rounds", "diverged")


def csv_text(comparison: Comparison, baseline_name: str | None = None) -> str:
    """Write one line per controller, training, instance and seed; accuracies as shares, ε without limit as "inf".

    `epsilon` is the instance's target. `difference` is the metric that decides minus the baseline's on the same pair,
    the mean over the baseline's trainings. Lines whose `role` is `hindsight` did not compete.
    """
    return csv_lines(list(_runs(comparison, baseline_name or default_baseline(comparison))))


def _runs(comparison: Comparison, baseline_name: str) -> Iterator[dict[str, Any]]:
    """Yield the columns of every run by name."""
    scores = Scores.of(comparison.controller(baseline_name), comparison.judged_by, comparison.drawn)
    reference = dict(zip(scores.pairs, scores.values.mean(axis=0).tolist(), strict=True))
    for role, controllers in (("controller", comparison.controllers), ("hindsight", comparison.hindsight)):
        for controller in controllers:
            for episode in controller.episodes:
                judged = getattr(episode, comparison.judged_by)
                yield {
                    **{name: getattr(comparison, name) for name in _SHARED},
                    "epsilon": comparison.targets[episode.instance],
                    "delta": comparison.delta,
                    "planned_rounds": comparison.rounds,
                    "role": role,
                    "controller": controller.name,
                    **{name: getattr(controller, name) for name in _OWN},
                    "signal_classes": " ".join(controller.signal_classes),
                    "instance": episode.instance,
                    "training": controller.trainings[episode.training] if controller.trainings else "",
                    "seed": episode.seed,
                    **{name: getattr(episode, name) for name in _MEASURED},
                    "difference": judged - reference[episode.instance, episode.seed],
                }
