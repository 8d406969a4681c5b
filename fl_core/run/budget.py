"""The two ways to state a run's privacy budget: an ε, or the noise multiplier of its rounds, from which ε follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fl_core.base.bounds import Bounds
from fl_core.base.errors import InputError, require
from fl_core.base.libraries import optimize
from fl_core.privacy import accounting
from fl_core.privacy.adjacency import ADJACENCIES
from fl_core.privacy.curves import EPSILON
from fl_core.privacy.filters import claim_for

NOISE_MULTIPLIER = Bounds(0.01, 1e6, "less protects nobody, and in more nothing can be learned")


class UnstatedEpsilon(float):
    """An ε that nobody has stated: a default, or the one that follows from a noise multiplier."""


def restated(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a configuration in which a given noise multiplier takes the place of its ε, or the reverse.

    Raises:
        InputError: both are given.
    """
    epsilon, noise_multiplier = changes.get("epsilon"), changes.get("noise_multiplier")
    if noise_multiplier is None:
        return {**changes, "noise_multiplier": None} if epsilon is not None else dict(changes)
    if epsilon is not None and not isinstance(epsilon, UnstatedEpsilon):
        raise both_given(epsilon, noise_multiplier)
    return {**changes, "epsilon": UnstatedEpsilon(math.inf)}


def both_given(epsilon: float, noise_multiplier: float) -> InputError:
    """Make the error for a budget that is stated twice."""
    return InputError(
        f"noise_multiplier is {noise_multiplier} and epsilon is {epsilon}, but each follows from the other; give one."
    )


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration without the ε that follows from its noise multiplier."""
    follows = settings.get("noise_multiplier") is not None
    return {name: value for name, value in settings.items() if not (follows and name == "epsilon")}


@lru_cache(maxsize=256)
def planned_epsilon(
    noise_multiplier: float, delta: float, sampling_rate: float, rounds: int, adjacency: str, claim: bool = False
) -> float:
    """Compute the ε of rounds that all have the same noise multiplier, which is fixed in advance.

    It is exact at a sampling rate of 1, and by the privacy loss distribution below.

    Examples:
        >>> round(planned_epsilon(1.3, 50**-1.1, 1.0, 100, "add-remove"), 2)
        45.72
        >>> round(planned_epsilon(1.3, 50**-1.1, 1.0, 100, "add-remove", claim=True), 2)  # as ACDP-pFSD prints it
        50.08

    Args:
        noise_multiplier: σ, noise std over the most that one client adds to the sum.
        delta: δ in (0, 1).
        sampling_rate: Poisson rate q that amplification is counted for; 1 for none.
        rounds: number of rounds T.
        adjacency: relation between neighbouring federations, one of `ADJACENCIES`.
        claim: True for the papers' accounting, by Rényi DP and under add-remove.

    Raises:
        InputError: the ε is outside what a ledger can hold.
    """
    if claim:
        epsilon = _claimed_epsilon(noise_multiplier, delta, sampling_rate, rounds)
    else:
        relative = noise_multiplier / ADJACENCIES[adjacency].sensitivity
        accountant = "gdp" if sampling_rate == 1 else "pld"
        epsilon = accounting.epsilon([(relative, sampling_rate, rounds)], delta, accountant)
    require(
        EPSILON.low <= epsilon <= EPSILON.high,
        f"noise_multiplier is {noise_multiplier:g}, at which {rounds} rounds at delta {delta:g} have epsilon "
        f"{epsilon:.3g}, but a budget must be in [{EPSILON.low:g}, {EPSILON.high:g}]; give epsilon instead.",
    )
    return epsilon


def _claimed_epsilon(noise_multiplier: float, delta: float, sampling_rate: float, rounds: int) -> float:
    """Compute the least ε for which the papers' accounting hands out no more noise than this; 0 below all of them."""

    def excess(log_epsilon: float) -> float:
        try:
            limit = claim_for(math.exp(log_epsilon), delta, sampling_rate, rounds)
        except InputError:  # less than any order can certify
            return math.log(1e300)
        return math.log(limit.noise_multiplier(limit.budget / rounds) / noise_multiplier)

    low, high = math.log(EPSILON.low), math.log(EPSILON.high)
    if excess(high) > 0:
        return math.inf
    if excess(low) <= 0:
        return 0.0
    return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-10, rtol=1e-12)))


def delta_warning(delta: float, clients: int) -> str:
    """Return the warning, one sentence, for δ at or above 1/N; "" for a smaller one."""
    if delta < 1 / clients:
        return ""
    return (
        f"delta is {delta}, at or above 1/clients = {1 / clients:.3g}: "
        "such a guarantee allows publishing a whole client now and then."
    )
