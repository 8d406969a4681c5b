"""The two questions of privacy accounting: ε of a history of Gaussian releases, and the noise that a budget asks for.

Throughout: the Gaussian mechanism, the unit of privacy is one client with all its data, adjacency is add/remove of a
client, cohorts are Poisson samples at rate q, and the noise multiplier σ is the noise's standard deviation divided by
the l2 sensitivity of what is released. Nothing here holds for sampling without replacement at q < 1 or for
replace-one adjacency. Every figure is an upper bound on ε unless it says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fl_core.base.arguments import checked
from fl_core.base.errors import require, require_count, require_name
from fl_core.base.libraries import NDArray, optimize
from fl_core.base.libraries import numpy as np
from fl_core.privacy.accountants import ACCOUNTANTS
from fl_core.privacy.curves import (
    ORDERS,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    noise_multiplier_for_rdp,
    rdp,
    rdp_closed_form,
    rdp_slack,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_sampling_rate,
)
from fl_core.privacy.history import Segment, group, joint_noise_multiplier, merge

__all__ = [
    "ACCOUNTANTS",
    "ORDERS",
    "Segment",
    "epsilon",
    "epsilon_after_steps",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "joint_noise_multiplier",
    "noise_multiplier_for",
    "rdp",
]


@checked
def epsilon(segments: Iterable[Segment], delta: float, accountant: str = "pld") -> float:
    """ε at δ of a history of sampled Gaussian releases, add/remove adjacency, one client.

    Examples:
        >>> history = [(1.0, 0.1, 100)]  # 100 rounds at σ = 1, each with a tenth of the clients
        >>> {name: round(epsilon(history, 1e-5, name), 2) for name in ("pld", "rdp")}
        {'pld': 7.05, 'rdp': 7.9}

    Args:
        segments: (noise multiplier σ, Poisson sampling rate q, steps); σ = ∞ costs nothing, σ = 0 costs everything.
        delta: δ in (0, 1).
        accountant: a name in `ACCOUNTANTS`. For histories that were fixed in advance: no accountant is a stopping rule
            for adaptive noise, the ledger is.

    Raises:
        InputError: a value out of range, an accountant of full cohorts at q < 1, or a history beyond its range.
    """
    require_name("accountant", accountant, ACCOUNTANTS)
    require_delta(delta)
    merged, chosen = merge(segments), ACCOUNTANTS[accountant]
    if not merged:
        return 0.0
    if any(sigma == 0 for sigma, _, _ in merged):
        return math.inf
    low = min(q for _, q, _ in merged)
    require(
        low == 1 or not chosen.full_cohort_only,
        f"accountant is {accountant}, which holds at sampling_rate 1 only, but the history has {low}.",
    )
    return chosen.bound(group(merged, chosen.most_distinct), delta)


@checked
def epsilon_after_steps(multipliers: Sequence[float], sampling_rate: float, delta: float) -> list[float]:
    """ε at δ after each release of a history fixed in advance: exact at q = 1, by Rényi DP at whole orders below."""
    require_delta(delta)
    require_sampling_rate(sampling_rate)
    found, total, slack = [], np.zeros(len(ORDERS)), rdp_slack(delta)
    costs: dict[float, NDArray[np.float64]] = {}
    for sigma in multipliers:
        require_noise_multiplier(sigma)
        if sigma not in costs:
            costs[sigma] = rdp_closed_form(sampling_rate, sigma, ORDERS)
        total = total + costs[sigma]
        if sampling_rate == 1:  # RDP is α/2σ²
            found.append(gdp_epsilon(math.sqrt(2 * total[0] / ORDERS[0]), delta))
        else:
            found.append(max(0.0, float(np.min(total + slack))) if total[0] > 0 else 0.0)
    return found


@checked
def noise_multiplier_for(
    epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: str = "pld"
) -> float:
    """The σ that `steps` equal releases need for (ε, δ): within 1e-5 of the least one, and never below it.

    Examples:
        >>> round(noise_multiplier_for(8.0, 1e-5, sampling_rate=0.1, steps=100), 3)
        0.936

    Args:
        epsilon: target ε > 0; infinity asks for no noise.
        delta: δ in (0, 1).
        sampling_rate: Poisson sampling rate q in (0, 1].
        steps: number of releases.
        accountant: as in `epsilon`.

    Raises:
        InputError: a value out of range, or an ε that the accountant cannot certify with any noise.
    """
    require_epsilon(epsilon)
    require_count("steps", steps)
    require_sampling_rate(sampling_rate)
    _spent([(math.inf, sampling_rate, steps)], delta, accountant)  # checks delta and the accountant
    require(
        sampling_rate == 1 or not ACCOUNTANTS[accountant].full_cohort_only,
        f"accountant is {accountant}, which holds at sampling_rate 1 only, but it is {sampling_rate}.",
    )
    if math.isinf(epsilon):
        return 0.0

    def excess(log_sigma: float) -> float:
        spent = _spent([(math.exp(log_sigma), sampling_rate, steps)], delta, accountant)
        return math.log(min(max(spent, 1e-9 * epsilon), 1e9 * epsilon) / epsilon)

    # The full cohort's σ and, where it exists, the Rényi one are enough; only an accountant's looseness asks for more.
    renyi = noise_multiplier_for_rdp(sampling_rate, (epsilon - rdp_slack(delta)) / steps, ORDERS)
    start = min(math.sqrt(steps) / gdp_mu(epsilon, delta), renyi)
    high = math.log(start) + 1e-6
    ceiling = high + 12
    while excess(high) > 0:
        high += 0.3
        require(high < ceiling, f"epsilon is {epsilon}, but {accountant} cannot certify so little at delta {delta:g}.")
    low, step = high - 0.1, 0.2
    while excess(low) <= 0:
        high, low, step = low, low - step, 2 * step
    step = 2e-6
    root = float(optimize.brentq(excess, low, high, xtol=step, rtol=1e-12)) + step
    while excess(root) > 0:
        root += step
        step *= 2
    return math.exp(root)


_spent = epsilon  # in the functions that have a target of the same name
