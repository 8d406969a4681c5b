"""Privacy filters: stopping rules that hold although the noise of every round depends on all that was released.

* q = 1: the Gaussian filter stops before Σ 1/σ_t² passes μ_B², δ(ε; μ_B) = δ (Smith and Thakurta, "Fully adaptive
  composition for Gaussian differential privacy", 2022). It costs nothing against a schedule fixed in advance.
* q < 1: a Rényi filter at one order α* fixed before the run (Feldman and Zrnic, "Individual privacy accounting via a
  Rényi filter", 2021) stops before Σ RDP(q, σ_t; α*) passes R*, see `renyi_budget`.
* q < 1, all noise fixed in advance: a plan, calibrated by its privacy loss distribution.

Gaussian mechanism, the unit is one client, add/remove adjacency, Poisson sampling at rate q, σ = noise std divided by
sensitivity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from fl_core.base.errors import require
from fl_core.base.libraries import NDArray, optimize
from fl_core.base.libraries import numpy as np
from fl_core.privacy import accounting, curves
from fl_core.privacy.conversion import renyi_budget
from fl_core.privacy.curves import LEAST_QUADRATURE, ORDERS

_MARGIN = 1e-10  # by which a budget stays inside (ε, δ), for the rounding errors of its charges


class Filter(Protocol):
    """Stopping rule: a budget, and the cost of a release, in a unit of its own in which costs add up."""

    @property
    def name(self) -> str:
        """Name in reports."""

    @property
    def budget(self) -> float:
        """Upper limit on the sum of all costs."""

    def cost(self, noise_multiplier: float) -> float:
        """Compute the cost of one Gaussian release about one cohort."""

    def noise_multiplier(self, cost: float) -> float:
        """Compute the σ of this cost, the inverse of `cost`, to about 1e-11."""

    def epsilon(self, spent: float) -> float:
        """Compute the ε of releases whose costs sum to `spent`, at the filter's δ."""


@dataclass(frozen=True)
class NoLimit:
    """ε = ∞: accepts every release, and certifies nothing once something is released with finite noise."""

    name: str = "no limit"
    budget: float = math.inf

    def cost(self, noise_multiplier: float) -> float:
        """Return 1 for finite noise, 0 for infinite noise."""
        return 0.0 if math.isinf(noise_multiplier) else 1.0

    def noise_multiplier(self, cost: float) -> float:
        """Return σ = 0: no noise."""
        return 0.0

    def epsilon(self, spent: float) -> float:
        """Return infinity, or 0 as long as nothing is spent."""
        return math.inf if spent > 0 else 0.0


@dataclass(frozen=True)
class GaussianFilter:
    """Gaussian-DP filter at q = 1; unit: μ² = 1/σ²."""

    delta: float
    budget: float
    name: str = "GDP filter"

    def cost(self, noise_multiplier: float) -> float:
        """Compute μ² = 1/σ²."""
        return curves.precision(noise_multiplier)

    def noise_multiplier(self, cost: float) -> float:
        """Compute σ = 1/μ."""
        return 1 / math.sqrt(cost) if cost > 0 else math.inf

    def epsilon(self, spent: float) -> float:
        """Compute the exact ε at δ of Gaussian DP with μ² = spent."""
        return _gdp_epsilon(spent, self.delta)


@lru_cache(maxsize=4096)
def _gdp_epsilon(spent: float, delta: float) -> float:
    """Compute ε(δ) of Gaussian DP at μ² = spent; cached, because runs of one schedule spend alike."""
    return curves.gdp_epsilon(math.sqrt(spent), delta)


@dataclass(frozen=True)
class ClaimedGaussian(GaussianFilter):
    """The papers' accounting at q = 1; unit: μ², converted to ε by Rényi DP at Opacus' default orders.

    Valid, and looser than the Gaussian filter.
    """

    name: str = "RDP by Opacus' orders"

    def epsilon(self, spent: float) -> float:
        """Compute the least ε over Opacus' orders, at Rényi DP of α·spent/2."""
        return max(0.0, float(np.min(_claim_orders() * spent / 2 + _claim_slack(self.delta)))) if spent > 0 else 0.0


@lru_cache(maxsize=1)
def _claim_orders() -> NDArray[np.float64]:
    """Return the default orders of Opacus' RDP accountant `[orders]`."""
    return np.array([1 + tenth / 10 for tenth in range(1, 100)] + list(range(12, 64)))


def _claim_slack(delta: float) -> NDArray[np.float64]:
    """Compute the term that the conversion from Rényi DP to ε adds, by order `[orders]` (Balle et al. 2020)."""
    orders = _claim_orders()
    return np.asarray(np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))


@lru_cache(maxsize=1024)
def claim_for(epsilon: float, delta: float, sampling_rate: float, rounds: int) -> Filter:
    """Make the filter of the papers' own accounting of (ε, δ): Rényi DP at Opacus' default orders.

    Raises:
        InputError: ε is below what any order can certify at this δ.
    """
    if math.isinf(epsilon) or sampling_rate < 1:
        return filter_for(epsilon, delta, sampling_rate, rounds)
    slack = _claim_slack(delta)
    least = float(np.min(slack))
    require(
        epsilon > least + 1e-9 * abs(least),
        f"epsilon is {epsilon}, but at delta {delta:g} the papers' accounting needs more than {max(least, 0):.3g}.",
    )
    return ClaimedGaussian(delta, float(np.max(2 * (epsilon - slack) / _claim_orders())) * (1 - _MARGIN))


@dataclass(frozen=True)
class RenyiFilter:
    """Rényi filter at q < 1; unit: Rényi DP at the order α*."""

    delta: float
    budget: float
    sampling_rate: float
    order: float
    target: float

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"Rényi filter at order {self.order:.4g}"

    def cost(self, noise_multiplier: float) -> float:
        """Compute the Rényi DP of a subsampled release at α*."""
        return curves.rdp_of_order(self.sampling_rate, noise_multiplier, self.order)

    def noise_multiplier(self, cost: float) -> float:
        """Compute the σ whose Rényi DP at α* is the cost."""
        return curves.noise_multiplier_for_rdp(self.sampling_rate, (cost,), (self.order,))

    def epsilon(self, spent: float) -> float:
        """Convert Rényi DP at α* to ε at δ, never above the target."""
        if spent == 0:
            return 0.0
        return min(self.target, max(0.0, spent + float(curves.rdp_slack(self.delta, (self.order,))[0])))


@lru_cache(maxsize=1024)
def renyi_order(epsilon: float, delta: float, sampling_rate: float, rounds: int) -> float:
    """Compute α*: the order, to three decimals, that needs the least noise for `rounds` equal releases at (ε, δ).

    Raises:
        InputError: ε is below what any order can certify at this δ.
    """
    slack = curves.rdp_slack(delta)
    least = float(np.min(slack))
    require(
        epsilon > least + 1e-9 * abs(least),
        f"epsilon is {epsilon}, but at delta {delta:g} and sampling_rate {sampling_rate:g} the ledger's Rényi filter "
        f"needs more than {least:.3g}.",
    )
    budgets = (epsilon - slack) / rounds
    sigma = curves.noise_multiplier_for_rdp(sampling_rate, budgets, ORDERS)
    spent = curves.rdp_closed_form(sampling_rate, sigma, ORDERS)
    best = int(np.argmin(np.where(budgets > 0, spent / np.where(budgets > 0, budgets, 1.0), np.inf)))
    if sigma < LEAST_QUADRATURE:
        return ORDERS[best]

    def noise(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        budget = renyi_budget(epsilon, delta, order) / rounds
        return curves.noise_multiplier_for_rdp(sampling_rate, (budget,), (order,)) if budget > 0 else math.inf

    centre = math.log(ORDERS[best] - 1)  # the tight conversion moves the best order down, and by less than half
    found = optimize.minimize_scalar(
        noise, bounds=(centre - 1, centre + 0.7), method="bounded", options={"xatol": 5e-3}
    )
    order = round(1 + math.exp(float(found.x)), 3)
    return order if noise(math.log(order - 1)) < noise(centre) else ORDERS[best]


@dataclass(frozen=True)
class NoisePlan:
    """Equal noise at q < 1 for a number of rounds fixed in advance; unit: rounds.

    σ is calibrated by the privacy loss distribution of all rounds, which needs 6 to 24 % less noise than a filter. A
    run that stops early, for whatever reason, is a post-processing of the whole plan.
    """

    delta: float
    budget: float
    sampling_rate: float
    target: float
    planned: float
    name: str = "PLD of the plan"

    def cost(self, noise_multiplier: float) -> float:
        """Return 1, a round; the ledger refuses any other σ than the planned one."""
        return 1.0

    def noise_multiplier(self, cost: float) -> float:
        """Return the planned σ, whatever the cost."""
        return self.planned

    def epsilon(self, spent: float) -> float:
        """Compute the ε of as many rounds of the plan as are spent."""
        return _planned_epsilon(self.planned, self.sampling_rate, round(spent), self.delta, self.target)


@lru_cache(maxsize=8192)
def _planned_epsilon(sigma: float, sampling_rate: float, rounds: int, delta: float, target: float) -> float:
    """Compute the ε of the first rounds of a plan by Rényi DP at integer orders, never above the target."""
    if rounds == 0:
        return 0.0
    bounds = rounds * _planned_rdp(sampling_rate, sigma) + curves.rdp_slack(delta)
    return min(target, max(0.0, float(np.min(bounds))))


@lru_cache(maxsize=1024)
def _planned_rdp(sampling_rate: float, sigma: float) -> NDArray[np.float64]:
    """Compute the Rényi DP of one round of a plan `[orders]`, the same in all of its rounds."""
    found = curves.rdp_closed_form(sampling_rate, sigma, ORDERS)
    found.flags.writeable = False  # everybody gets the same
    return found


@lru_cache(maxsize=1024)
def filter_for(epsilon: float, delta: float, sampling_rate: float, rounds: int) -> Filter:
    """Make the filter that certifies (ε, δ) at this sampling rate; `rounds` only fixes α*, more or fewer may follow."""
    if math.isinf(epsilon):
        return NoLimit()
    if sampling_rate == 1:
        return GaussianFilter(delta, curves.gdp_mu(epsilon, delta) ** 2 * (1 - _MARGIN))
    order = renyi_order(epsilon, delta, sampling_rate, rounds)
    budget = renyi_budget(epsilon, delta, order)
    budget -= min(_MARGIN * budget + 1e-13 * (1 + epsilon), budget / 2)
    return RenyiFilter(delta, budget, sampling_rate, order, epsilon)


@lru_cache(maxsize=1024)
def plan_for(epsilon: float, delta: float, sampling_rate: float, rounds: int) -> Filter:
    """Make the stopping rule that certifies (ε, δ) for `rounds` rounds of equal noise fixed in advance."""
    if math.isinf(epsilon) or sampling_rate == 1:  # where a filter costs nothing
        return filter_for(epsilon, delta, sampling_rate, rounds)
    sigma = accounting.noise_multiplier_for(epsilon, delta, sampling_rate, rounds, "pld")
    return NoisePlan(delta, float(rounds), sampling_rate, epsilon, sigma)
