"""Independent checks that a ledger's charges keep to its budget: none of its own arithmetic is asked.

`Ledger.epsilon_spent` never exceeds the target by construction, so that comparing the two shows nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from scipy import optimize, special

from fl_core.privacy.filters import NoisePlan, RenyiFilter
from fl_core.privacy.ledger import Ledger

_PLD_GRID = 1e-3
"""Width of the grid of losses, which adds to ε what `require_within_budget` allows for plans."""


def worst_delta(epsilon: float, order: float, spent: float) -> float:
    """Compute the greatest δ at ε of any pair of distributions with so much Rényi divergence at an order.

    δ and the divergence are two f-divergences, and any pair of values that these take is a mixture of those of
    distributions on two outcomes (Harremoës and Vajda, "On pairs of f-divergences and their joint range", 2011).
    """

    def mass(up: float) -> float:
        """Probability, under the second distribution, of the outcome whose ratio is e^up."""

        def excess(log_mass: float) -> float:
            rest = -math.expm1(log_mass)
            left = max(-math.expm1(log_mass + up), 1e-300)  # 0 at the upper end, but for rounding
            other = order * math.log(left / rest) + math.log(rest)
            return float(np.logaddexp(log_mass + order * up, other)) - (order - 1) * spent

        high = -up - 1e-15
        if excess(high) <= 0:
            return math.exp(high)
        low = high - 1.0
        while excess(low) > 0:
            low = high + 2 * (low - high)
        return math.exp(float(optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-14)))

    found = [
        optimize.minimize_scalar(
            lambda up: -mass(up) * (math.exp(up) - math.exp(epsilon)),
            bounds=(low, low + 1.0),
            method="bounded",
            options={"xatol": 1e-10},
        )
        for low in epsilon + np.arange(0.0, 8.0)
    ]
    return -float(min(one.fun for one in found))


@lru_cache(maxsize=1024)
def most_divergence(epsilon: float, delta: float, order: float) -> float:
    """Compute the most Rényi divergence at an order that keeps every mechanism within (ε, δ)."""

    def excess(spent: float) -> float:
        return math.log(max(worst_delta(epsilon, order, spent), 1e-300) / delta)

    high = epsilon + 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.brentq(excess, 1e-9, high, rtol=1e-12))


@lru_cache(maxsize=65536)
def divergence(sampling_rate: float, sigma: float, order: float) -> float:
    """Compute the Rényi divergence of a sampled Gaussian release by Opacus; unsampled, which is more, at high noise."""
    if sigma > 1e4:  # there Opacus subtracts equal numbers
        return order / 2 / sigma / sigma
    return float(compute_rdp(q=sampling_rate, noise_multiplier=sigma, steps=1, orders=[order])[0])


def joint_sigmas(ledger: Ledger) -> list[float]:
    """Compute σ of every charge from its releases, which share a cohort; half of it where neighbours are 2C apart."""
    joint = [sum(one.noise_multiplier**-2 for one in charge.releases) for charge in ledger.charges]
    return [precision**-0.5 / ledger.sensitivity if precision > 0 else math.inf for precision in joint]


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Compute δ of Gaussian releases with Σ1/σ² = μ² (Balle and Wang 2018, theorem 8), from logarithms of tails."""
    low, high = special.log_ndtr(mu / 2 - epsilon / mu), epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(low) * -math.expm1(min(high - low, 0.0)))


def share_of_divergence(ledger: Ledger) -> float:
    """Compute the share of a Rényi filter's budget that its charges take, by Opacus and the worst mechanism."""
    assert isinstance(ledger._filter, RenyiFilter)
    order, rate = ledger._filter.order, ledger.sampling_rate
    spent = math.fsum(divergence(rate, sigma, order) for sigma in joint_sigmas(ledger) if sigma < math.inf)
    return spent / most_divergence(ledger.epsilon, ledger.delta, order)


def require_within_budget(ledger: Ledger) -> None:
    """Fail if the charges of a ledger exceed its (ε, δ), by whatever rule it keeps.

    * adaptive at q < 1: Opacus' Rényi divergence at the filter's order against `most_divergence`;
    * fixed in advance at q < 1: dp-accounting's privacy loss distribution of the charges made, on a coarse grid;
    * q = 1: the exact curve of the Gaussian mechanism; a paper's claim: Opacus at its own orders.
    """
    sigmas = [sigma for sigma in joint_sigmas(ledger) if sigma < math.inf]
    if not sigmas or math.isinf(ledger.epsilon):
        return
    if isinstance(ledger._filter, RenyiFilter):
        assert share_of_divergence(ledger) <= 1
    elif ledger.claim:
        orders = RDPAccountant.DEFAULT_ALPHAS
        spent = sum(compute_rdp(q=1.0, noise_multiplier=sigma, steps=1, orders=orders) for sigma in sigmas)
        assert get_privacy_spent(orders=orders, rdp=spent, delta=ledger.delta)[0] <= ledger.epsilon * (1 + 1e-9)
    elif isinstance(ledger._filter, NoisePlan):
        counts = Counter(sigmas)
        assert len(counts) <= 3, "a plan has one σ, but for rounding"
        (sigma, _), *_ = sorted(counts.items())
        assert _planned(sigma, ledger.sampling_rate, len(sigmas), ledger.delta) <= ledger.epsilon * 1.001 + 0.002
    else:
        mu = math.sqrt(math.fsum(sigma**-2 for sigma in sigmas))
        assert gaussian_delta(ledger.epsilon, mu) <= ledger.delta * (1 + 1e-6)


@lru_cache(maxsize=256)
def _planned(sigma: float, sampling_rate: float, rounds: int, delta: float) -> float:
    step = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=sampling_rate, value_discretization_interval=_PLD_GRID
    )
    return float(step.self_compose(rounds).get_epsilon_for_delta(delta))
