"""Intervals against SciPy's exact distributions and simulation; the one-run bound against a plain sum."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from fl_core.audit.bounds import (
    censored_spread,
    gaussian_epsilon,
    one_run_epsilon,
    p_value,
    refuted_epsilon,
    signal_estimate,
    spread_estimate,
)


@pytest.mark.parametrize(("freedom", "mean"), [(30, 0.0), (30, 2.0), (100, 8.0)])
def test_signal_interval_is_nearly_the_exact_one_of_noncentral_t(freedom, mean):
    random = np.random.default_rng(7)
    included, excluded = mean + random.normal(size=40), random.normal(size=freedom)
    lengths = np.full(40, max(mean, 1.0))
    found = signal_estimate(included, lengths, excluded, 0.05)
    length = float(np.linalg.norm(lengths))
    t = float(included @ lengths) / length / math.sqrt(float(np.mean(excluded**2)))

    def exact(p: float) -> float:
        return float(optimize.brentq(lambda nc: stats.nct.cdf(t, freedom, nc) - p, t - 10, t + 10)) / length

    width = exact(0.025) - exact(0.975)
    assert found.low == pytest.approx(exact(0.975), abs=0.02 * width)
    assert found.high == pytest.approx(exact(0.025), abs=0.02 * width)


def test_intervals_miss_as_often_as_they_say():
    random = np.random.default_rng(3)
    misses = np.zeros(2)
    for _ in range(1000):
        lengths = random.uniform(0.5, 3, 40)
        included, excluded = 1.7 * lengths + 0.8 * random.normal(size=40), 0.8 * random.normal(size=45)
        misses[0] += not signal_estimate(included, lengths, excluded, 0.1).contains(1.7 / 0.8)
        misses[1] += not spread_estimate(excluded, 0.1).contains(0.8)
    assert np.all(stats.binomtest(int(misses[0]), 1000, 0.1).pvalue > 1e-3)
    assert stats.binomtest(int(misses[1]), 1000, 0.1).pvalue > 1e-3


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_p_value_is_the_plain_sum_of_the_theorem(delta):
    canaries, guesses, right, epsilon = 60, 40, 35, 1.2
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(guesses, k) * rate**k * (1 - rate) ** (guesses - k) for k in range(guesses + 1)]
    beta = sum(mass[right:])
    alpha = max(sum(mass[right - i : right]) / i for i in range(1, right + 1))
    assert p_value(canaries, guesses, right, epsilon, delta) == pytest.approx(beta + 2 * canaries * delta * alpha)


def test_all_right_guesses_refute_what_the_closed_form_says():
    """At δ = 0 r right guesses of r have probability rate^r, so ε = log(rate / (1 − rate)) at rate = error^(1/r)."""
    rate = 0.05 ** (1 / 50)
    assert refuted_epsilon(200, 50, 50, 0.0, 0.05) == pytest.approx(math.log(rate / (1 - rate)), abs=2e-3)
    assert refuted_epsilon(200, 50, 25, 0.0, 0.05) == 0


def test_one_run_bound_stays_below_the_truth_of_randomised_response():
    """Coins that are shown truly with odds e^ε: the bound may pass ε in one run of twenty."""
    random, epsilon, above = np.random.default_rng(5), 1.5, 0
    for _ in range(100):
        coins = random.random(200) < 0.5
        shown = np.where(random.random(200) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
        above += one_run_epsilon(shown + 1e-3 * random.random(200), coins, 0.0) > epsilon
    assert above <= 11  # P[Binomial(100, 0.05) > 11] = 0.004


def test_gaussian_epsilon_inverts_the_curve():
    epsilon, mu = gaussian_epsilon(1.0, 1e-5), 1.0
    curve = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    assert curve == pytest.approx(1e-5, rel=1e-6)
    assert gaussian_epsilon(-0.3, 1e-5) == 0


@pytest.mark.parametrize("limit", [0.4, 1.2, 20.0])
def test_censored_intervals_miss_as_often_as_they_say(limit):
    """Values beyond the limit are cut off at it; an exact interval of a count misses no more often than it says."""
    random, misses = np.random.default_rng(11), 0
    for _ in range(400):
        values = np.clip(1.3 * random.normal(size=90), -limit, limit)
        misses += not censored_spread(values, np.full(90, limit), 0.1).contains(1.3)
    assert misses <= 55  # P[Binomial(400, 0.1) > 55] = 0.007


def test_censored_spread_of_no_noise_is_nothing():
    measured = censored_spread(np.zeros(96), np.full(96, 0.5), 1e-3)
    assert measured.value == 0
    assert measured.high < 0.5
