"""The two curves of a Gaussian release: the exact Gaussian-DP trade-off at q = 1, and its Rényi divergence at any q.

Conventions as in `fl_core.privacy.accounting`: one client, add/remove adjacency, Poisson sampling at rate q, the
noise multiplier σ is the noise's standard deviation divided by the l2 sensitivity.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from fl_core.base.bounds import Bounds, is_number
from fl_core.base.errors import InputError, require
from fl_core.base.libraries import ArrayLike, NDArray, optimize, special
from fl_core.base.libraries import numpy as np
from fl_core.base.text import short

ORDERS: tuple[int, ...] = (*range(2, 257), 512, 1024)
"""Rényi orders α that are searched first: whole numbers, where there is a closed form; up to 1024 because high noise
needs them."""
LEAST_QUADRATURE = 0.05
"""σ below which fractional orders are not worked out."""


# --- Checks -------------------------------------------------------------------------------------------------------


EPSILON = Bounds(
    1e-6,
    1e6,
    "less asks for noise in which nothing can be learned, and more promises nothing; inf trains without noise",
    also=(math.inf,),
)
DELTA = Bounds(
    1e-100, 0.9, "it is the chance that the promise fails, and less than the smallest of these is lost in rounding"
)
SAMPLING_RATE = Bounds(1e-6, 1, "with less, rounds have no clients")
"""Ranges of the settings of a budget."""


def require_epsilon(epsilon: float) -> None:
    """Refuse anything but a number in `EPSILON`; infinity is one."""
    require(
        is_number(epsilon) and epsilon > 0, f"epsilon is {short(epsilon)}, but it must be above 0 (inf for no limit)."
    )
    EPSILON.check("epsilon", epsilon)


def require_delta(delta: float) -> None:
    """Refuse anything but a number in `DELTA`."""
    DELTA.check("delta", delta)


def require_sampling_rate(sampling_rate: float) -> None:
    """Refuse anything but a number in `SAMPLING_RATE`."""
    SAMPLING_RATE.check("sampling_rate", sampling_rate)


def require_noise_multiplier(noise_multiplier: float, zero_allowed: bool = True) -> None:
    """Refuse NaN, negative numbers, those beyond all floats and, where it would mean no noise at all, 0."""
    known = is_number(noise_multiplier) and (noise_multiplier <= sys.float_info.max or noise_multiplier == math.inf)
    if not (known and (noise_multiplier > 0 or (zero_allowed and noise_multiplier == 0))):
        allowed = "0 or more" if zero_allowed else "above 0"
        raise InputError(f"noise_multiplier is {short(noise_multiplier)}, but it must be {allowed}.")


def _require_not_negative(field: str, value: float) -> None:
    require(is_number(value) and value >= 0, f"{field} is {value}, but it must be 0 or more.")


# --- Gaussian differential privacy: the exact curve ---------------------------------------------------------------


def _log_gdp_delta(epsilon: float, mu: float) -> float:
    """ln δ(ε; μ); relative error of δ below 1e-9 for μ from 1e-4, and below 1e-4 down to μ = 1e-11."""
    if mu < 1e-150:
        return -math.inf
    if math.isinf(mu):
        return 0.0
    if epsilon == 0:
        return math.log(math.erf(mu / math.sqrt(8)))
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if low < 0:
        tail = math.exp(-low * low / 2) * float(special.erfcx(high / math.sqrt(2))) / 2
        delta = float(special.ndtr(-low)) - tail
        return math.log(delta if delta > 0 else math.erf(mu / math.sqrt(8)))  # δ(0; μ), an upper bound
    # e^ε φ(high) = φ(low), so δ = φ(low)·(Mills(low) − Mills(high)): no huge or tiny factor meets another.
    drop = float(special.erfcx(low / math.sqrt(2)) - special.erfcx(high / math.sqrt(2)))
    if drop <= 0:  # the two have no digit between them; |erfcx'| <= 2/√π bounds the drop from above
        drop = mu * math.sqrt(2 / math.pi)
    return -low * low / 2 + math.log(drop / 2)


def gdp_delta(epsilon: float, mu: float) -> float:
    """δ(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), the exact curve of μ-GDP (Dong et al., corollary 2.13)."""
    _require_not_negative("epsilon", epsilon)
    _require_not_negative("mu", mu)
    return 0.0 if math.isinf(epsilon) else math.exp(_log_gdp_delta(epsilon, mu))


def gdp_epsilon(mu: float, delta: float) -> float:
    """The least ε with δ(ε; μ) <= δ, rounded up by at most 1e-9 in relative terms; 0 where δ(0; μ) <= δ."""
    _require_not_negative("mu", mu)
    require_delta(delta)
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if _log_gdp_delta(0.0, mu) <= target:
        return 0.0
    # δ(ε; μ) <= Φ(−a) <= exp(−a²/2) with a = ε/μ − μ/2, so this end is never too low.
    high = mu * (mu / 2 + math.sqrt(-2 * target)) * (1 + 1e-12)
    if math.isinf(high):
        return math.inf
    root = float(optimize.brentq(lambda e: _log_gdp_delta(e, mu) - target, 0.0, high, xtol=1e-300, rtol=1e-14))
    return _nudge(root, 1.0, lambda e: _log_gdp_delta(e, mu) <= target)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The greatest μ with δ(ε; μ) <= δ, rounded down by at most 1e-9 in relative terms."""
    _require_not_negative("epsilon", epsilon)
    require_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    target = math.log(delta)
    spread = math.sqrt(-2 * target)
    low = 2 * epsilon / (spread + math.sqrt(spread**2 + 2 * epsilon))  # the same tail bound, solved for μ
    low = max(low * (1 - 1e-12), 1e-3 * delta)  # δ(0; μ) < μ / 2
    high = 2 * low
    while _log_gdp_delta(epsilon, high) <= target:
        high *= 2
    root = float(optimize.brentq(lambda m: _log_gdp_delta(epsilon, m) - target, low, high, xtol=1e-300, rtol=1e-14))
    return _nudge(root, -1.0, lambda m: _log_gdp_delta(epsilon, m) <= target)


def _nudge(value: float, sign: float, holds: Callable[[float], bool]) -> float:
    """Move a root off the wrong side of its equation in steps that start at one part in 1e14."""
    step = 1e-14
    while not holds(value):
        value *= 1 + sign * step
        step *= 2
    return value


# --- Rényi differential privacy -----------------------------------------------------------------------------------


def precision(noise_multiplier: float) -> float:
    """1/σ², made 0 or infinite where it leaves 1e-300…1e300."""
    value = (1 / noise_multiplier) * (1 / noise_multiplier) if noise_multiplier > 0 else math.inf
    return math.inf if value > 1e300 else value if value > 1e-300 else 0.0


@lru_cache(maxsize=4096)
def _opacus_rdp(sampling_rate: float, noise_multiplier: float, orders: tuple[int, ...]) -> tuple[float, ...]:
    from opacus.accountants.analysis.rdp import compute_rdp  # here, because it takes seconds to import

    values = compute_rdp(q=sampling_rate, noise_multiplier=noise_multiplier, steps=1, orders=list(orders))
    # At high noise Opacus takes a sum minus 1 that cancels to within 1e-16 of zero, on either side of it.
    return tuple(max(0.0, float(value)) for value in values)


def rdp(sampling_rate: float, noise_multiplier: float, orders: Sequence[int] = ORDERS) -> NDArray[np.float64]:
    """Rényi DP of one step of the sampled Gaussian mechanism by Opacus, one value per integer order.

    Error about 1e-15 absolute or 1e-14 relative, whichever is larger. Cached per (σ, q, orders).
    """
    require_sampling_rate(sampling_rate)
    require_noise_multiplier(noise_multiplier)
    require(all(isinstance(a, int) and a >= 2 for a in orders), "orders must be whole numbers of at least 2.")
    inverse = precision(noise_multiplier)
    if inverse == 0 or math.isinf(inverse):
        return np.full(len(orders), inverse)
    return np.array(_opacus_rdp(sampling_rate, noise_multiplier, tuple(orders)))


@lru_cache(maxsize=32)
def _binomial_terms(
    orders: tuple[int, ...], sampling_rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """For every order in turn k(k − 1)/2 and ln C(α, k) q^k (1 − q)^(α − k), k = 2…α, and where each order starts."""
    k = np.concatenate([np.arange(2.0, a + 1) for a in orders])
    sizes = np.array(orders) - 1
    a = np.repeat(np.array(orders, dtype=float), sizes)
    log_binomial = special.gammaln(a + 1) - special.gammaln(k + 1) - special.gammaln(a - k + 1)
    weights = log_binomial + k * math.log(sampling_rate) + (a - k) * math.log1p(-sampling_rate)
    return k * (k - 1) / 2, weights, np.concatenate([[0], np.cumsum(sizes)[:-1]])


def rdp_closed_form(sampling_rate: float, noise_multiplier: float, orders: tuple[int, ...]) -> NDArray[np.float64]:
    """Compute `rdp` in closed form `[orders]`, a hundred times faster and fully precise at high noise.

    The filter charges by it.

    (α − 1)·RDP = ln Σ_k C(α, k) (1 − q)^(α−k) q^k exp(k(k − 1)/2σ²) (Mironov et al., section 3.3). The weights sum to
    1, so the sum is 1 + Σ_{k >= 2} weight·(exp(k(k − 1)/2σ²) − 1): only positive terms, nothing cancels.
    """
    alphas = np.array(orders, dtype=float)
    inverse = precision(noise_multiplier)
    if inverse == 0 or math.isinf(inverse):
        return np.full(len(orders), inverse)
    if sampling_rate == 1:
        return np.asarray(alphas * inverse / 2, dtype=np.float64)
    pairs, weights, starts = _binomial_terms(orders, sampling_rate)
    exponents = pairs * inverse
    logs = weights + exponents + np.log(-np.expm1(-exponents))
    top = np.maximum.reduceat(logs, starts)
    sizes = np.array(orders) - 1
    log_excess = top + np.log(np.add.reduceat(np.exp(logs - np.repeat(top, sizes)), starts))
    result: NDArray[np.float64] = np.logaddexp(0.0, log_excess) / (alphas - 1)
    return result


def rdp_of_order(sampling_rate: float, noise_multiplier: float, order: float) -> float:
    """Rényi DP of one step at any real order α > 1: the closed form at whole ones, else by quadrature.

    (α − 1)·RDP = ln E[r^α] with r = 1 − q + q·exp(t/σ − 1/2σ²) and t standard normal (Mironov et al., section 3). Since
    E[r] = 1, that is ln(1 + E[r^α − 1 − α(r − 1)]), whose integrand is never negative: nothing cancels at high noise.
    The trapezoidal rule converges geometrically on it; relative error below 1e-11. Below σ = 0.05, where its grid would
    get long, the next whole order stands in, which bounds it from above.
    """
    whole = max(2, math.ceil(order))
    if order == whole or sampling_rate == 1 or not LEAST_QUADRATURE <= noise_multiplier < 1e150:
        if sampling_rate == 1:
            return order * precision(noise_multiplier) / 2
        return float(rdp_closed_form(sampling_rate, noise_multiplier, (whole,))[0])
    step = 0.1 * min(1.0, noise_multiplier)
    t = np.arange(-14.0, order / noise_multiplier + 14.0, step)
    log_ratio = t / noise_multiplier - precision(noise_multiplier) / 2
    x = sampling_rate * np.expm1(np.minimum(log_ratio, 600.0))
    z = order * np.where(log_ratio < 600, np.log1p(x), math.log(sampling_rate) + log_ratio)
    small = np.abs(x) < 1e-3 / order  # there r^α − 1 − αx by its series, elsewhere as it stands, large z in logs
    y = np.where(small, x, 0.0)
    tail = 1 + (order - 2) / 3 * y * (1 + (order - 3) / 4 * y * (1 + (order - 4) / 5 * y))
    near = np.log(np.maximum(order * (order - 1) / 2 * y * y * tail, 1e-320))
    with np.errstate(all="ignore"):
        middle = np.log(np.expm1(np.minimum(z, 40.0)) - order * x)
        far = z + np.log1p(-(1 + order * x) * np.exp(-z))
    logs = np.where(small, near, np.where(z > 30, far, middle)) - t * t / 2
    top = float(np.max(logs))
    log_excess = top + math.log(float(np.sum(np.exp(logs - top))) * step / math.sqrt(2 * math.pi))
    return float(np.logaddexp(0.0, log_excess)) / (order - 1)


def rdp_slack(delta: float, orders: Iterable[float] = ORDERS) -> NDArray[np.float64]:
    """ε − RDP at each order: ln(1 − 1/α) − ln(δα)/(α − 1) (Balle et al., theorem 21)."""
    alphas = np.array(list(orders), dtype=float)
    result: NDArray[np.float64] = np.log1p(-1 / alphas) - np.log(delta * alphas) / (alphas - 1)
    return result


def _rdp_at(sampling_rate: float, noise_multiplier: float, orders: Sequence[float]) -> NDArray[np.float64]:
    """RDP at orders all of which are whole, or one of which is not."""
    if len(orders) == 1:
        return np.array([rdp_of_order(sampling_rate, noise_multiplier, orders[0])])
    return rdp_closed_form(sampling_rate, noise_multiplier, tuple(map(int, orders)))


def noise_multiplier_for_rdp(sampling_rate: float, budgets: ArrayLike, orders: tuple[float, ...]) -> float:
    """The least σ, up to 1e-11 in relative terms either way, whose RDP is within the budget at one order or more.

    Infinite where no order has a budget above 0.
    """
    limits = np.asarray(budgets, dtype=float)
    if np.max(limits) <= 0:
        return math.inf
    log_limits = np.log(np.where(limits > 0, limits, 1.0))

    def gap(log_sigma: float) -> float:
        with np.errstate(divide="ignore"):
            logs = np.log(_rdp_at(sampling_rate, math.exp(log_sigma), orders)) - log_limits
        return min(max(float(np.min(np.where(limits > 0, logs, np.inf))), -700.0), 700.0)

    # Sampling never hurts: RDP <= α/2σ² gives an upper end, but for the whole orders that stand in at little noise.
    alphas = np.array(orders, dtype=float)
    high = float(np.min(np.where(limits > 0, np.log(alphas / 2) - log_limits, np.inf))) / 2 + 1e-9
    while gap(high) > 0:
        high += 0.1
    low = high - 0.1
    while gap(low) <= 0:
        low -= 0.5
    return math.exp(float(optimize.brentq(gap, low, high, xtol=1e-12, rtol=1e-14)))
