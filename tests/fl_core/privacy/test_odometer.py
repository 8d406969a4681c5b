"""Odometers are attacked by the best stopping rule: its δ is computed from the exact privacy loss, by induction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from fl_core.privacy.accounting import gdp_epsilon, gdp_mu
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.releases import Release

Floats = NDArray[np.float64]


def best_stopping_delta(steps: list[Floats], first: list[int], readings: list[float], h: float) -> float:
    """sup over stopping rules τ of E[(1 − exp(u_τ − L_τ))⁺], L the sum of independent losses on a grid of width h.

    Args:
        steps: probabilities of the loss of each round, on a grid.
        first: grid index at which each of them starts.
        readings: u after each round.
        h: width of the grid.
    """
    low = sum(min(0, one) for one in first)
    high = sum(max(0, one + len(p)) for one, p in zip(first, steps, strict=True))
    low, high = max(low, -round(40 / h)), min(high, round((max(readings) + 25) / h))
    loss = np.arange(low, high + 1) * h

    def gain(reading: float) -> Floats:
        return np.maximum(0, -np.expm1(np.minimum(0, reading - loss)))

    value = gain(readings[-1])
    for t in range(len(steps) - 2, -1, -1):
        p, start = steps[t + 1], first[t + 1]
        padded = np.concatenate([np.zeros(max(0, -start)), value, np.ones(max(0, start + len(p) - 1))])
        ahead = fftconvolve(padded, p[::-1], mode="valid")
        shift = max(0, start)
        value = np.maximum(gain(readings[t]), np.clip(ahead[shift : shift + len(loss)], 0, 1))
    at = np.arange(len(steps[0])) + first[0] - low
    inside = (at >= 0) & (at < len(loss))
    return float(value[at[inside]] @ steps[0][inside])


def gaussian_step(sigma: float, h: float) -> tuple[Floats, int]:
    """The loss of one Gaussian release, N(μ²/2, μ²) with μ = 1/σ, on a grid."""
    mu = 1 / sigma
    first = math.floor((mu * mu / 2 - 9 * mu) / h)
    at = np.arange(first, math.ceil((mu * mu / 2 + 9 * mu) / h) + 1) * h
    density = np.exp(-((at - mu * mu / 2) ** 2) / (2 * mu * mu))
    return density / density.sum(), first


def sampled_step(sigma: float, q: float, h: float) -> tuple[Floats, int]:
    """The loss of one sampled Gaussian release by dp-accounting, the direction that removes a client."""
    pmf = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=h
    )._pmf_remove.to_dense_pmf()
    return np.asarray(pmf._probs), int(pmf._lower_loss)


def charged(ledger: Ledger, sigmas: list[float]) -> tuple[list[float], list[float]]:
    """Readings of the odometer, and the ε spent, after each of these rounds."""
    odometer, spent = [], []
    for index, sigma in enumerate(sigmas):
        ledger.charge(index, [Release("update", sigma)])
        odometer.append(ledger.odometer())
        spent.append(ledger.epsilon_spent())
    return odometer, spent


@pytest.mark.parametrize("epsilon", [7.5, 1.0])
@pytest.mark.parametrize("growth", ["equal", "geometric"])
def test_the_best_stopping_rule_does_not_beat_the_odometer_of_a_full_cohort(epsilon: float, growth: str) -> None:
    rounds, delta = 40, 1e-5
    ledger = Ledger(epsilon, delta, 1.0, rounds)
    mu = gdp_mu(epsilon, delta) * (1 - 1e-6)
    spent = np.linspace(0, 1, rounds + 1) if growth == "equal" else np.r_[0, np.geomspace(1e-4, 1, rounds)]
    sigmas = [1 / math.sqrt(part) for part in mu**2 * np.diff(spent)]
    h = min(2e-3, 1 / max(sigmas) / 8)
    odometer, so_far = charged(ledger, sigmas)
    steps, first = zip(*(gaussian_step(sigma, h) for sigma in sigmas), strict=True)
    assert best_stopping_delta(list(steps), list(first), odometer, h) <= delta
    assert best_stopping_delta(list(steps), list(first), so_far, h) > 5 * delta  # what was spent is no claim
    exact = [gdp_epsilon(mu * math.sqrt(part), delta) for part in spent[1:]]
    assert all(one <= read <= 1.4 * one + 0.02 for read, one in zip(odometer, exact, strict=True))
    assert odometer[-1] < 1.15 * epsilon


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_best_stopping_rule_does_not_beat_the_odometer_of_sampled_cohorts(adaptive: bool) -> None:
    epsilon, delta, q, rounds, h = 2.0, 1e-4, 0.2, 20, 2e-3
    ledger = Ledger(epsilon, delta, q, rounds, adaptive=adaptive)
    sigma = ledger.uniform_noise_multiplier
    odometer, _ = charged(ledger, [sigma] * rounds)
    p, first = sampled_step(sigma, q, h)
    found = best_stopping_delta([p] * rounds, [first] * rounds, odometer, h)
    assert 0 < found <= delta
    assert odometer == sorted(odometer)
    assert epsilon * 0.9 < odometer[-1] < 1.3 * epsilon


def test_the_odometer_of_a_plan_never_falls() -> None:
    ledger = Ledger(1.0, 1e-5, 0.1, 8, adaptive=False)
    odometer, _ = charged(ledger, [ledger.uniform_noise_multiplier] * 8)
    assert odometer == sorted(odometer)
    assert odometer[0] < 1 < odometer[-1] < 1.25


def test_an_odometer_reads_the_same_whatever_the_order_of_the_rounds() -> None:
    sigmas = [4.0, 9.0, 5.0, 30.0]
    forward, backward = Ledger(20.0, 1e-5, 0.3, 4), Ledger(20.0, 1e-5, 0.3, 4)
    assert charged(forward, sigmas)[0][-1] == pytest.approx(charged(backward, sigmas[::-1])[0][-1], rel=1e-12)


def test_no_limit_and_a_papers_claim_have_no_odometer() -> None:
    for ledger in (Ledger(math.inf, 1e-5, 1.0, 3), Ledger(4.0, 1e-5, 1.0, 3, claim=True)):
        assert ledger.odometer() == 0
        ledger.charge(0, [Release("update", 10.0)])
        assert ledger.odometer() == math.inf
