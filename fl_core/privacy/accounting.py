"""Privacy accounting of Gaussian releases: ε for a history, and the noise that a budget asks for.

Throughout: the Gaussian mechanism, the unit of privacy is one client with all its data, adjacency is add/remove of a
client, cohorts are Poisson samples at rate q, and the noise multiplier σ is the noise's standard deviation divided by
the l2 sensitivity of what is released. Nothing here holds for sampling without replacement at q < 1 or for
replace-one adjacency. Every figure is an upper bound on ε unless it says otherwise.

Sources: Dong, Roth, Su, "Gaussian differential privacy" (2022); Mironov, Talwar, Zhang, "Rényi differential privacy
of the sampled Gaussian mechanism" (2019); Balle et al., "Hypothesis testing interpretations and Rényi differential
privacy" (2020); Doroshenko et al., "Connect the dots" (2022); Gopi, Lee, Wutschitz, "Numerical composition of
differential privacy" (2021).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize

from fl_core.base.errors import InputError, require, require_count, require_name
from fl_core.privacy.curves import (
    ORDERS,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    noise_multiplier_for_rdp,
    precision,
    rdp,
    rdp_closed_form,
    rdp_slack,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_sampling_rate,
)

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

Segment = tuple[float, float, int]
"""Noise multiplier, sampling rate, steps."""

ACCOUNTANTS = ("rdp", "pld", "gdp", "prv")

_PLD_POINTS = 2**20  # most grid points of one composed PLD, about a second of work
_PRV_POINTS = 2**24  # most grid points over all segments of a PRV history, some ten seconds of work
_MOST_DISTINCT = {"rdp": 1000, "pld": 100, "prv": 50}  # more distinct (σ, q) than this are grouped, see `_group`
_FFT_ERROR = 2.0**-50  # absolute error of δ per composed step; at most 3.3e-16 was seen, see `_pld_epsilon`


# --- Histories ----------------------------------------------------------------------------------------------------


def joint_noise_multiplier(multipliers: Iterable[float]) -> float:
    """(Σ_k σ_k⁻²)^(−1/2): several Gaussian releases about one and the same cohort are one release with this σ.

    Exact, whatever the q, provided that they share the Poisson sample. No release, or noise without end, is infinite.
    """
    values = list(multipliers)
    for value in values:
        require_noise_multiplier(value)
    if len(values) == 1:
        return values[0]
    if 0 in values:
        return 0.0
    total = math.hypot(*(1 / value for value in values))
    return 1 / total if total > 0 else math.inf


def _merge(segments: Iterable[Segment]) -> list[Segment]:
    """Equal (σ, q) added up, everything at q = 1 as the one Gaussian that it is; σ above 1e154 counts as infinite."""
    steps_of: dict[tuple[float, float], int] = {}
    for sigma, q, steps in segments:
        require_noise_multiplier(sigma)
        require_sampling_rate(q)
        require_count("steps", steps, least=0)
        if steps > 0 and precision(sigma) > 0:
            key = (float(sigma), float(q))
            steps_of[key] = steps_of.get(key, 0) + steps
    full = [(sigma, steps) for (sigma, q), steps in steps_of.items() if q == 1]
    merged = [(sigma, q, steps) for (sigma, q), steps in sorted(steps_of.items()) if q < 1]
    if full:
        total = math.hypot(*(math.sqrt(steps) / sigma if sigma > 0 else math.inf for sigma, steps in full))
        merged.append((1 / total, 1.0, 1))
    return merged


def _group(segments: list[Segment], most: int) -> list[Segment]:
    """At most `most` segments: σ's in one cell of a geometric grid all count as the least of them.

    Less noise never lowers ε, so the result stays an upper bound. The grid is as fine as `most` allows: 100 cells for
    σ's within a factor of 3 of each other cost 0.5 % in σ.
    """
    rates = {q for _, q, _ in segments}
    require(len(rates) <= 25, f"segments have {len(rates)} sampling rates, but at most 25 can be composed.")
    least, width = min(sigma for sigma, _, _ in segments), 1e-3
    grouped = {(sigma, q): steps for sigma, q, steps in segments}
    while len(grouped) > most:
        cells: dict[tuple[int, float], tuple[float, int]] = {}
        for sigma, q, steps in segments:
            cell = (math.floor((math.log(sigma) - math.log(least)) / width), q)
            floor, count = cells.get(cell, (sigma, 0))
            cells[cell] = (min(floor, sigma), count + steps)
        grouped = {(sigma, q): steps for (_, q), (sigma, steps) in cells.items()}
        width *= 1.25
    return [(sigma, q, steps) for (sigma, q), steps in sorted(grouped.items())]


# --- Bounds -------------------------------------------------------------------------------------------------------


def _total_rdp(segments: Iterable[Segment]) -> npt.NDArray[np.float64]:
    total = np.zeros(len(ORDERS))
    for sigma, q, steps in segments:
        total += steps * rdp_closed_form(q, sigma, ORDERS)
    return total


def _rdp_epsilon(segments: Sequence[Segment], delta: float) -> float:
    """The closed form finds the best order for the history, Opacus certifies at it: any order bounds ε."""
    best = int(np.argmin(_total_rdp(segments) + rdp_slack(delta)))
    order = (ORDERS[best],)
    total = math.fsum(steps * float(rdp(q, sigma, order)[0]) for sigma, q, steps in segments)
    return max(0.0, total + float(rdp_slack(delta, order)[0]))


def _step_loss(segment: Segment) -> tuple[float, float]:
    """Rough standard deviation and greatest value (beyond it lies a mass of e^-50) of one step's privacy loss."""
    sigma, q, _ = segment
    spread = min(q * math.sqrt(math.expm1(min(precision(sigma), 700.0))), 1 / sigma)
    tail = 10 / sigma + precision(sigma) / 2
    return spread, tail if tail > 700 else math.log1p(q * math.expm1(tail))


def _pld_grid(segments: Sequence[Segment]) -> float:
    """Grid interval h for a history; a coarser one only makes ε larger.

    Connecting the dots with h below the spread s of one step's loss adds (h/s)²/10 to ε in relative terms, with
    h >> s about 0.8·h·s to the variance s². So h goes by s, the steps weighted by their part in the total, as far as
    the work allows: dp-accounting spends a Python loop on every point of every segment.
    """
    losses = [(_step_loss(segment), segment[2]) for segment in segments]
    typical = sum(t * s * s for (s, _), t in losses) / sum(t * s for (s, _), t in losses)
    per_spread = min(200.0, max(20.0, 2000 / len(segments)))
    top = max(top for (_, top), _ in losses)
    total = max(top, float(np.min(_total_rdp(segments) + rdp_slack(1e-20))))
    points_total = _PLD_POINTS if len(segments) <= 4 else _PLD_POINTS // 8
    points_step = min(2**17, 2**19 // len(segments))
    return max(min(2e-3, typical / per_spread), 2 * total / points_total, 2 * top / points_step)


def _pld_epsilon(segments: Sequence[Segment], delta: float) -> float:
    """`_composed_epsilon`, remembered: equal schedules of many runs are composed once."""
    return _composed_epsilon(tuple(segments), delta)


@lru_cache(maxsize=512)
def _composed_epsilon(segments: tuple[Segment, ...], delta: float) -> float:
    """The tighter of dp-accounting's PLD bound and the Rényi bound; at q = 1 the exact curve, its closed form.

    An FFT taken to the power T loses up to T·3e-16 of probability: 100,000 composed Gaussians come out 0.9 too low in
    ε at δ = 1e-12. So δ is charged three times that error; where nothing is left of it, the Rényi bound stands.
    """
    if all(q == 1 for _, q, _ in segments):  # merged: one segment
        return gdp_epsilon(1 / segments[0][0], delta)
    from dp_accounting.pld import privacy_loss_distribution  # here, because it takes seconds to import

    bound = max(0.0, float(np.min(_total_rdp(segments) + rdp_slack(delta))))
    usable = delta - _FFT_ERROR * (len(segments) + sum(steps for _, _, steps in segments))
    if usable <= 0 or bound == 0 or math.isinf(bound) or (interval := _pld_grid(segments)) > 1:
        return bound
    truncation = min(1e-15, 1e-6 * delta) / (2 * len(segments))
    parts = []
    for sigma, q, steps in segments:
        part = privacy_loss_distribution.from_gaussian_mechanism(
            sigma, sampling_prob=q, value_discretization_interval=interval
        )
        parts.append(part if steps == 1 else part.self_compose(steps, truncation))
    while len(parts) > 1:  # neighbours first: short arrays meet short arrays
        pairs = [a.compose(b, truncation) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return min(bound, max(0.0, float(parts[0].get_epsilon_for_delta(usable))))


def _prv_epsilon(segments: Sequence[Segment], delta: float) -> float:
    """Opacus' PRV upper bound, which lies up to 0.01 and a little above the PLD bound."""
    total = sum(steps for _, _, steps in segments)
    usable = delta - _FFT_ERROR * (len(segments) + total)
    reach = float(np.min(_total_rdp(segments) + rdp_slack(delta / 4000))) + 3
    points = 200 * reach * math.sqrt(total * math.log(12_000 / delta) / 2) * len(segments)
    require(
        usable > delta / 2 and points <= _PRV_POINTS,
        f"accountant is prv, but this history at delta {delta:g} is beyond its numerical range; use pld.",
    )
    from opacus.accountants import PRVAccountant  # here, because it takes seconds to import

    accountant = PRVAccountant()
    accountant.history = list(segments)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # about the orders with which it sizes its grid
            value = float(accountant.get_epsilon(usable))
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise InputError(f"accountant is prv, but it fails on this history ({error}); use pld.") from error
    require(math.isfinite(value), "accountant is prv, but it finds no finite epsilon for this history; use pld.")
    return max(0.0, value)


# --- The two questions --------------------------------------------------------------------------------------------


def epsilon(segments: Iterable[Segment], delta: float, accountant: str = "pld") -> float:
    """ε at δ of a history of sampled Gaussian releases, add/remove adjacency, one client.

    Args:
        segments: (noise multiplier σ, Poisson sampling rate q, steps); σ = ∞ costs nothing, σ = 0 costs everything.
        delta: δ in (0, 1).
        accountant: `rdp` (Opacus at the best of `ORDERS`), `pld` (dp-accounting, tightest), `prv` (Opacus, about
            0.01 above) or `gdp` (exact, q = 1 only). Histories fixed in advance, or that depend on public state
            only: none of these is a stopping rule for adaptive noise at q < 1, the ledger is.

    Raises:
        InputError: a value out of range, `gdp` at q < 1, or a history beyond the accountant's numerical range.
    """
    require_name("accountant", accountant, ACCOUNTANTS)
    require_delta(delta)
    merged = _merge(segments)
    if not merged:
        return 0.0
    if any(sigma == 0 for sigma, _, _ in merged):
        return math.inf
    if accountant == "gdp":
        low = min(q for _, q, _ in merged)
        require(low == 1, f"accountant is gdp, which is exact at sampling_rate 1 only, but the history has {low}.")
        return gdp_epsilon(1 / merged[0][0], delta)
    bound = {"rdp": _rdp_epsilon, "pld": _pld_epsilon, "prv": _prv_epsilon}[accountant]
    return bound(_group(merged, _MOST_DISTINCT[accountant]), delta)


def epsilon_after_steps(multipliers: Sequence[float], sampling_rate: float, delta: float) -> list[float]:
    """ε at δ after each release of a history fixed in advance: exact at q = 1, by Rényi DP at its best order below."""
    require_delta(delta)
    require_sampling_rate(sampling_rate)
    found, total, slack = [], np.zeros(len(ORDERS)), rdp_slack(delta)
    costs: dict[float, npt.NDArray[np.float64]] = {}
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


def noise_multiplier_for(
    epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: str = "pld"
) -> float:
    """The σ that `steps` equal releases need for (ε, δ): within 1e-5 of the least one, and never below it.

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
        accountant != "gdp" or sampling_rate == 1,
        f"accountant is gdp, which is exact at sampling_rate 1 only, but it is {sampling_rate}.",
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
