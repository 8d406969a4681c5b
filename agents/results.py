"""What a training measures, and what it results in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.costs import Cost
from agents.learned import LearnedController

Measurements = dict[str, Any]
"""Measurements of an update: `update`, `decisions`, `episode_reward`, `actions_outside` (share of the chosen
action coordinates outside [-1, 1]), `validation_accuracy` and `validation_diverged` (None where there was no
validation), `best_accuracy`, and the federated rounds taken so far."""


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        controller: the best policy on validation, ready to act.
        folder: where it is saved.
        best_score: its mean final accuracy on the validation instances.
        best_update: updates it had seen; 0 is the untrained policy.
        initial_score: what the untrained policy reached there.
        cost: federated rounds taken.
        history: an entry per update, the first of the untrained policy.
        parallel: how environments ran, `rows` or `processes`.
        executor: who ran the local training.
        seconds: wall-clock time since this process began or resumed the training.
    """

    controller: LearnedController
    folder: Path
    best_score: float
    best_update: int
    initial_score: float
    cost: Cost
    history: list[Measurements]
    parallel: str
    executor: str
    seconds: float
