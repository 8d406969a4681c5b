"""A comparison as one table for programs: a line for every run."""

from __future__ import annotations

import csv
import io

from experiments.records.comparison import Comparison, ControllerResult, Episode
from experiments.statistics.resampling import Scores
from experiments.statistics.summary import default_baseline

_SHARED = ("task", "method", "dataset", "population", "clients")
_OWN = ("label", "signals", "training_rounds", "search_rounds", "tuned_on", "tuned_population")
_WHICH = ("signal_classes", "instance", "training", "seed")
_MEASURED = ("global_accuracy", "personal_accuracy", "epsilon_spent", "epsilon_pld", "rounds", "diverged")


def csv_text(comparison: Comparison, baseline_name: str | None = None) -> str:
    """One line per controller, training, instance and seed; accuracies as shares, ε without limit as "inf".

    `epsilon` is the instance's target. `difference` is the figure that decides minus the baseline's on the same pair,
    the mean over the baseline's trainings. Lines whose `role` is `hindsight` did not compete.
    """
    baseline = comparison.controller(baseline_name or default_baseline(comparison))
    pairs = Scores.of(baseline, comparison.judged_by, comparison.drawn)
    reference = dict(zip(pairs.pairs, pairs.values.mean(axis=0).tolist(), strict=True))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        [*_SHARED, "epsilon", "delta", "planned_rounds", "role", "controller", *_OWN, *_WHICH, *_MEASURED, "difference"]
    )

    def line(role: str, controller: ControllerResult, episode: Episode) -> list[object]:
        own = getattr(episode, comparison.judged_by) - reference[episode.instance, episode.seed]
        return [
            *(getattr(comparison, name) for name in _SHARED),
            comparison.targets[episode.instance],
            comparison.delta,
            comparison.rounds,
            role,
            controller.name,
            *(getattr(controller, name) for name in _OWN),
            " ".join(controller.signal_classes),
            episode.instance,
            controller.trainings[episode.training] if controller.trainings else "",
            episode.seed,
            *(getattr(episode, name) for name in _MEASURED),
            own,
        ]

    for role, controllers in (("controller", comparison.controllers), ("hindsight", comparison.hindsight)):
        for controller in controllers:
            writer.writerows(line(role, controller, episode) for episode in controller.episodes)
    return buffer.getvalue()
