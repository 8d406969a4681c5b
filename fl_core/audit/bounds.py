"""Statistics of an audit: confidence intervals of measurements, and lower bounds on ε from a single run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.privacy.accounting import gdp_epsilon

CONFIDENCE = 0.95
GUESSED = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Shares of the canaries that are guessed in the one-run bound; the best counts, at a quarter of the error each."""
_PRECISION = 1e-3


@dataclass(frozen=True)
class Measurement:
    """A measured value with its confidence interval."""

    value: float
    low: float
    high: float

    def contains(self, claimed: float) -> bool:
        """Return True if a claim is compatible with the measurement."""
        return self.low <= claimed <= self.high


def spread_estimate(scores: FloatArray, error: float) -> Measurement:
    """Measure the std of centred normal scores, with the χ² interval that misses it with probability `error`."""
    count, total = len(scores), float(np.sum(scores**2))
    return spread_interval(total, count, error)


def spread_interval(total: float, count: float, error: float) -> Measurement:
    """Measure the std from the sum of `count` squares of centred normal scores, as `spread_estimate`."""
    low, high = float(stats.chi2.isf(error / 2, count)), float(stats.chi2.ppf(error / 2, count))
    return Measurement(math.sqrt(total / count), math.sqrt(total / low), math.sqrt(total / high))


def censored_spread(values: FloatArray, limits: FloatArray, error: float) -> Measurement:
    """Measure the std of centred normal values that are seen up to a limit of their own.

    Where no limit is near, by the χ² interval. Else by the values within a bound that is below nearly all limits: their
    number is binomial, and its exact interval (Clopper and Pearson 1934) is one of the std.

    Args:
        values: claimed to have std 1.
        limits: greatest magnitude that each could be seen at.
        error: probability of an interval that misses.
    """
    if limits.min() > 8:
        return spread_estimate(values, error)
    bound = min(1.5, float(np.quantile(limits, 0.25)))
    kept = np.abs(values[limits >= bound])
    within, count = int((kept < bound).sum()), len(kept)
    low, high = (float(one) for one in stats.binomtest(within, count).proportion_ci(1 - error))

    def spread(share: float) -> float:
        return bound / float(stats.norm.ppf((1 + share) / 2)) if 0 < share < 1 else (math.inf if share <= 0 else 0.0)

    return Measurement(spread(within / count), spread(high), spread(low))


def signal_estimate(included: FloatArray, lengths: FloatArray, excluded: FloatArray, error: float) -> Measurement:
    """Measure g/τ, where included scores are N(g·length, τ²) and excluded ones N(0, τ²): signal over its claim.

    The weighted mean over the excluded spread is noncentral t; its interval is that of Johnson and Welch (1940),
    t(1 − 1/4f) ± z·√(1 + t²/2f), within one per cent of the exact one from f = 20 on.

    Args:
        included: scores of included canaries.
        lengths: mean that the claim gives each of them.
        excluded: scores of excluded ones; f is their number.
        error: probability of an interval that misses.
    """
    freedom, length = len(excluded), float(np.linalg.norm(lengths))
    t = float(included @ lengths) / length / math.sqrt(float(np.mean(excluded**2)))
    z = float(stats.norm.ppf(1 - error / 2)) * math.sqrt(1 + t * t / (2 * freedom))
    centre = t * (1 - 1 / (4 * freedom))
    return Measurement(centre / length, (centre - z) / length, (centre + z) / length)


def one_run_epsilon(scores: FloatArray, included: BoolArray, delta: float, confidence: float = CONFIDENCE) -> float:
    """Compute the ε that one run refutes: with this confidence, the mechanism is not (ε', δ)-DP for any ε' below it.

    Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run" (2023), theorem 5.2: of r guesses of fair
    coins v or more are right with probability at most β + 2mδα, where β = P[B ≥ v], α = max_i P[v > B ≥ v − i]/i and
    B is binomial with r trials and rate e^ε/(1 + e^ε). The canaries with the highest scores are guessed to be in, as
    many with the lowest to be out; as many as `GUESSED` says.

    Args:
        scores: of every canary, a function of what the run released.
        included: their coins.
        delta: δ.
        confidence: of the bound.
    """
    # The share that is guessed best is chosen by the result, so each gets an equal part of the error (union bound).
    error = (1 - confidence) / len(GUESSED)
    order = np.argsort(scores)
    best = 0.0
    for share in GUESSED:
        half = max(1, round(share * len(scores) / 2))
        half = min(half, len(scores) // 2)
        right = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
        best = max(best, refuted_epsilon(len(scores), 2 * half, right, delta, error))
    return best


def refuted_epsilon(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Search the largest ε at which so many right guesses have probability `error` or less; 0 where none has."""
    if p_value(canaries, guesses, right, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(canaries, guesses, right, high, delta) <= error and high < 64:
        low, high = high, 2 * high
    while high - low > _PRECISION:
        middle = (low + high) / 2
        fits = p_value(canaries, guesses, right, middle, delta) <= error
        low, high = (middle, high) if fits else (low, middle)
    return low


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bound the probability of so many right guesses or more against an (ε, δ)-DP mechanism (theorem 5.2)."""
    rate, steps = 1 / (1 + math.exp(-epsilon)), np.arange(1, right + 1)
    beyond = float(special.bdtrc(right - 1, guesses, rate)) if right else 1.0
    nearly = np.where(steps < right, special.bdtrc(np.maximum(right - steps - 1, 0), guesses, rate), 1.0)
    alpha = float(np.max((nearly - beyond) / steps, initial=0.0))
    return min(1.0, beyond + 2 * canaries * delta * max(0.0, alpha))


def gaussian_epsilon(mu_low: float, delta: float) -> float:
    """Convert μ of a Gaussian mechanism to ε at δ; 0 where μ may be 0."""
    return gdp_epsilon(mu_low, delta) if mu_low > 0 else 0.0
