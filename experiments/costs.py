"""What training and search would have cost in privacy, had they been done on the clients that are protected."""

from __future__ import annotations

import math
from functools import lru_cache

from experiments.results import Comparison, ControllerResult
from fl_core.privacy import accounting


def search_epsilon(comparison: Comparison, controller: ControllerResult) -> float | None:
    """ε, at the comparison's δ, of all rounds that trained and tuned a controller, taken as releases about one client.

    All runs are composed as Gaussian mechanisms (Dong, Roth, Su 2022 for full participation, else privacy loss
    distributions): each round with the σ of a run that spends the task's ε uniformly.

    Returns:
        0 for a controller without training and search, infinity without privacy, None where σ is not known.
    """
    rounds = controller.training_rounds + controller.search_rounds
    if not rounds:
        return 0.0
    if comparison.noise_multiplier is None:
        return None
    if comparison.noise_multiplier == 0:
        return math.inf
    return composed_epsilon(comparison.noise_multiplier, _amplifying_rate(comparison), rounds, comparison.delta)


def search_accountant(comparison: Comparison) -> str:
    """How `search_epsilon` composes, in words."""
    full = _amplifying_rate(comparison) == 1
    return "Gaussian differential privacy" if full else "privacy loss distributions"


def _amplifying_rate(comparison: Comparison) -> float:
    """The Poisson sampling rate; a fixed cohort amplifies nothing."""
    return comparison.sampling_rate if comparison.sampling == "poisson" else 1.0


@lru_cache(maxsize=256)
def composed_epsilon(noise_multiplier: float, sampling_rate: float, rounds: int, delta: float) -> float:
    """ε of so many rounds with the same noise and sampling."""
    accountant = "gdp" if sampling_rate == 1 else "pld"
    return accounting.epsilon([(noise_multiplier, sampling_rate, rounds)], delta, accountant)
