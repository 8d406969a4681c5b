"""The accountants: each bounds ε at δ of a history of sampled Gaussian releases that was fixed in advance.

Adding one is adding an entry to `ACCOUNTANTS`: lists, help texts and the reports of the ledger follow from it.

Sources: Dong, Roth, Su, "Gaussian differential privacy" (2022); Mironov, Talwar, Zhang, "Rényi differential privacy
of the sampled Gaussian mechanism" (2019); Balle et al., "Hypothesis testing interpretations and Rényi differential
privacy" (2020); Doroshenko et al., "Connect the dots" (2022); Gopi, Lee, Wutschitz, "Numerical composition of
differential privacy" (2021).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fl_core.base.errors import InputError, require
from fl_core.base.libraries import NDArray, optimize
from fl_core.base.libraries import numpy as np
from fl_core.privacy.conversion import renyi_epsilon
from fl_core.privacy.curves import (
    LEAST_QUADRATURE,
    ORDERS,
    gdp_epsilon,
    precision,
    rdp,
    rdp_closed_form,
    rdp_of_order,
    rdp_slack,
)
from fl_core.privacy.history import Segment
from fl_core.privacy.loss_distribution import sampled_gaussian

_PLD_POINTS = 2**20  # most grid points of one composed PLD, about a second of work
_PRV_POINTS = 2**24  # most grid points over all segments of a PRV history, some ten seconds of work
_LARGEST_LOSS = 600.0  # past about 709, e^loss is no number any more
_FFT_ERROR = 2.0**-50  # absolute error of δ per composed step; at most 3.3e-16 was seen, see `_pld`


@dataclass(frozen=True)
class Accountant:
    """A line of the catalogue.

    Attributes:
        summary: how it counts.
        certifies: what its ε is worth.
        bound: ε at δ of merged segments, none of them empty or without noise.
        most_distinct: segments that it composes one by one; of a longer history, similar ones count as the costliest.
        full_cohort_only: whether it is defined at sampling rate 1 alone.
    """

    summary: str
    certifies: str
    bound: Callable[[Sequence[Segment], float], float]
    most_distinct: int
    full_cohort_only: bool = False


def _total_rdp(segments: Sequence[Segment]) -> NDArray[np.float64]:
    total = np.zeros(len(ORDERS))
    for sigma, q, steps in segments:
        total += steps * rdp_closed_form(q, sigma, ORDERS)
    return total


def _rdp(segments: Sequence[Segment], delta: float) -> float:
    """The least over whole orders, as Opacus certifies, and over the real ones around the best, tightly converted."""
    totals = _total_rdp(segments) + rdp_slack(delta)
    best = int(np.argmin(totals))
    whole = (ORDERS[best],)
    bound = math.fsum(steps * float(rdp(q, sigma, whole)[0]) for sigma, q, steps in segments)
    bound += float(rdp_slack(delta, whole)[0])

    def at(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        total = math.fsum(steps * rdp_of_order(q, sigma, order) for sigma, q, steps in segments)
        return renyi_epsilon(total, delta, order)

    if math.isfinite(bound) and min(sigma for sigma, _, _ in segments) >= LEAST_QUADRATURE:
        centre = math.log(ORDERS[best] - 1)  # the tight conversion moves the best order down, and by less than half
        bounds = (centre - 1 if best else math.log(0.02), centre + 0.7)
        bound = min(
            bound, float(optimize.minimize_scalar(at, bounds=bounds, method="bounded", options={"xatol": 2e-3}).fun)
        )
    return max(0.0, bound)


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


def _pld(segments: Sequence[Segment], delta: float) -> float:
    """`_composed_epsilon`, remembered: equal schedules of many runs are composed once."""
    return _composed_epsilon(tuple(segments), delta)


@lru_cache(maxsize=512)
def _composed_epsilon(segments: tuple[Segment, ...], delta: float) -> float:
    """The tighter of dp-accounting's PLD bound and the Rényi bound; at q = 1 the exact curve, its closed form.

    An FFT taken to the power T loses up to T·3e-16 of probability: 100,000 composed Gaussians come out 0.9 too low in
    ε at δ = 1e-12. So δ is charged three times that error; where nothing is left of it, the Rényi bound stands, as it
    does for losses past the range of numbers.
    """
    if all(q == 1 for _, q, _ in segments):  # merged: one segment
        return gdp_epsilon(1 / segments[0][0], delta)
    bound = max(0.0, float(np.min(_total_rdp(segments) + rdp_slack(delta))))
    usable = delta - _FFT_ERROR * (len(segments) + sum(steps for _, _, steps in segments))
    if usable <= 0 or bound == 0 or math.isinf(bound) or (interval := _pld_grid(segments)) > 1:
        return bound
    if max(_step_loss(segment)[1] for segment in segments) > _LARGEST_LOSS:
        return bound
    truncation = min(1e-15, 1e-6 * delta) / (2 * len(segments))
    parts = []
    for sigma, q, steps in segments:
        part = sampled_gaussian(sigma, q, interval)
        parts.append(part if steps == 1 else part.self_compose(steps, truncation))
    while len(parts) > 1:  # neighbours first: short arrays meet short arrays
        pairs = [a.compose(b, truncation) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    found = max(0.0, float(parts[0].get_epsilon_for_delta(usable)))
    return bound if found > _LARGEST_LOSS else min(bound, found)


def _prv(segments: Sequence[Segment], delta: float) -> float:
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


def _gdp(segments: Sequence[Segment], delta: float) -> float:
    """The exact curve of the one Gaussian that a merged history at sampling rate 1 is."""
    return gdp_epsilon(1 / segments[0][0], delta)


ACCOUNTANTS: dict[str, Accountant] = {
    "rdp": Accountant(
        "Rényi DP at the best order for the history",
        "an upper bound, some 10 % above the least ε; needs noise and rounds that were fixed in advance",
        _rdp,
        most_distinct=1000,
    ),
    "pld": Accountant(
        "privacy loss distributions by dp-accounting (connect the dots)",
        "an upper bound, tight to some 1e-5; needs noise and rounds that were fixed in advance",
        _pld,
        most_distinct=100,
    ),
    "prv": Accountant(
        "privacy loss random variables by Opacus",
        "an upper bound, about 0.01 above pld; needs noise and rounds that were fixed in advance",
        _prv,
        most_distinct=50,
    ),
    "gdp": Accountant(
        "Gaussian DP, the exact curve; sampling rate 1 only",
        "the least ε itself; needs noise and rounds that were fixed in advance",
        _gdp,
        most_distinct=1,
        full_cohort_only=True,
    ),
}
"""Every accountant by name."""
