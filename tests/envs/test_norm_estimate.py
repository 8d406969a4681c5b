"""Bayes' rule for the median norm, against numerical integration and in simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from envs import make_core
from envs.norm_estimate import DRIFT, PRIOR, SHARE, WIDTHS, MedianNorm
from envs.playing import run_to_the_end
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.plan import FloatArray, RoundPlan, RoundReport
from policies import make_controller, parse_controller
from tests.envs.conftest import PLAIN


def plan_of(runs: int, telemetry: float) -> RoundPlan:
    values = {"telemetry_share": np.full(runs, telemetry)}
    return RoundPlan.from_values(runs, values)


def report_of(clip: FloatArray, share: FloatArray, sigma: float) -> RoundReport:
    figures = {"clip_norm": clip, SHARE: share, "noise_multiplier": np.full(len(clip), sigma)}
    return RoundReport(figures, np.ones(len(clip), dtype=bool), np.zeros(len(clip), dtype=bool))


def test_the_posterior_is_bayes_rule_integrated_on_a_finer_grid() -> None:
    """Two rounds of 50 clients, with half and a fifth of the privacy on the bit, and drift as a convolution."""
    estimate = MedianNorm(FederationConfig(), 1, uses_bit=True)
    estimate.reset([0], np.array([1.3]), np.array([50.0]))
    rounds = [(1.3, 0.9, 8.0, 0.5), (0.6, 0.35, 5.0, 0.2)]
    log_medians = np.linspace(-4.0, 4.0, 4001)
    step = log_medians[1] - log_medians[0]
    density = np.stack([stats.norm.pdf(log_medians, math.log(1.3), PRIOR)] * len(WIDTHS))
    kernel = stats.norm.pdf(np.arange(-200, 201) * step, 0, DRIFT) * step
    for clip, share, sigma, telemetry in rounds:
        estimate.observe(plan_of(1, telemetry), report_of(np.array([clip]), np.array([share]), sigma))
        density = np.stack([np.convolve(one, kernel, mode="same") for one in density])
        noise = sigma * math.sqrt((1 - telemetry) / telemetry) / (2 * 50)
        for place, width in enumerate(WIDTHS):
            mean = stats.norm.cdf((math.log(clip) - log_medians) / width)
            density[place] *= stats.norm.pdf(share, mean, np.sqrt(noise**2 + mean * (1 - mean) / 50))
    whole = density.sum(axis=0) / density.sum()
    mean = float(whole @ log_medians)
    assert math.log(estimate.median[0]) == pytest.approx(mean, abs=2e-3)
    assert estimate.spread[0] == pytest.approx(math.sqrt(whole @ (log_medians - mean) ** 2), rel=0.01)


def test_the_noise_of_the_share_is_that_of_the_release() -> None:
    full = MedianNorm(FederationConfig(), 1, uses_bit=True)
    sigma = np.array([4.0])
    assert full.share_std(plan_of(1, 0.5), sigma)[0] == pytest.approx(4.0 / 100)
    assert full.share_std(plan_of(1, 0.1), sigma)[0] == pytest.approx(12.0 / 100)
    sampled = MedianNorm(FederationConfig(clients=100, sampling_rate=0.5), 1, uses_bit=True)
    assert sampled.share_std(plan_of(1, 0.5), sigma)[0] == pytest.approx(0.5 * math.sqrt(16 / 2500 + 0.5 / 50))
    local = MedianNorm(FederationConfig(placement="local"), 1, uses_bit=True)
    assert local.share_std(plan_of(1, 0.5), sigma)[0] == pytest.approx(math.sqrt(50) * 4 / 100)
    unpaid = MedianNorm(FederationConfig(), 1, uses_bit=True)
    assert unpaid.share_std(RoundPlan.constant(1), sigma)[0] == math.inf


def test_runs_of_other_sizes_are_weighed_by_their_own_noise() -> None:
    alone = MedianNorm(FederationConfig(clients=200), 1, uses_bit=True)
    mixed = MedianNorm(FederationConfig(clients=50), 2, uses_bit=True)
    mixed.reset([0, 1], np.ones(2), np.array([50.0, 200.0]))
    share = np.array([0.8])
    alone.observe(plan_of(1, 0.5), report_of(np.ones(1), share, 8.0))
    mixed.observe(plan_of(2, 0.5), report_of(np.ones(2), np.repeat(share, 2), 8.0))
    assert mixed.median[1] == pytest.approx(alone.median[0])
    assert mixed.spread[1] < mixed.spread[0]


@pytest.mark.parametrize("scale", [0.04, 0.2, 1.0, 5.0, 25.0])
def test_it_converges_at_any_scale_within_a_few_noised_bits(scale: float) -> None:
    """Ten runs of 50 clients with log-normal norms; five rounds at a third of the pace of σ = 4."""
    random, runs = np.random.default_rng(3), 10
    estimate = MedianNorm(FederationConfig(), runs, uses_bit=True)
    estimate.reset(range(runs), np.full(runs, 1.3), np.full(runs, 50.0))
    norms = 1.3 * scale * np.exp(0.3 * random.normal(size=(runs, 50)))
    sigma = 4 * math.sqrt(3) * math.sqrt(2)
    for _ in range(8):
        clip = estimate.median
        share = (norms <= clip[:, None]).mean(axis=1) + random.normal(0, sigma / 100, runs)
        estimate.observe(plan_of(runs, 0.5), report_of(clip, share, sigma))
    errors = np.abs(np.log(estimate.median / np.median(norms, axis=1)))
    assert errors.mean() < 0.15
    assert (estimate.spread < 0.35).all()


def test_nothing_is_learned_from_bits_that_are_not_shown_or_not_paid_for() -> None:
    for uses_bit, plan in ((False, plan_of(1, 0.5)), (True, RoundPlan.constant(1))):
        estimate = MedianNorm(FederationConfig(), 1, uses_bit)
        before = estimate.probabilities
        estimate.observe(plan, report_of(np.ones(1), np.zeros(1), 4.0))
        assert np.array_equal(estimate.probabilities, before)


def test_a_saved_run_goes_on_with_its_estimate_and_shows_it() -> None:
    spec = parse_controller("probe")
    settings: dict[str, Any] = PLAIN | {"knobs": spec.knobs, "signals": spec.signals, "rounds": 8}
    whole, half = make_core(1, **settings), make_core(1, **settings)
    run_to_the_end(whole, make_controller(spec, whole), [RunSettings(seed=4)], lambda done: None)
    half.reset([0], [RunSettings(seed=4)])
    controller = make_controller(spec, half)
    for _ in range(4):
        half.step(controller.predict(half.observe())[0])
    resumed = make_core(1, **settings)
    resumed.load_state_dict(half.state_dict())
    while not resumed.finished[0]:
        resumed.step(controller.predict(resumed.observe())[0])
    for name in ("clip_norm", "release_norm", "epsilon_spent"):
        assert [one[name] for one in resumed.history[0]] == [one[name] for one in whole.history[0]]
    shown = {feature.name: value for feature, value in zip(whole.features, whole.observe()[0], strict=True)}
    assert shown["median_norm"] != 0
    assert 0 < shown["median_spread"] < PRIOR
