"""The privacy report of a run, against SciPy's Gaussian curve."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from envs import EnvCore, make_core
from experiments.records.privacy import PrivacyReport, privacy_report
from fl_core.run.config import RunSettings

ROUNDS, CLIENTS = 2, 8


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism (Dong, Roth, Su 2022, corollary 2.13)."""

    def excess(epsilon: float) -> float:
        low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(stats.norm.cdf(low) - np.exp(epsilon + stats.norm.logcdf(high))) - delta

    return float(optimize.brentq(excess, 1e-9, 500, xtol=1e-12))


def play(**settings: Any) -> EnvCore:
    core = make_core(1, clients=CLIENTS, rounds=ROUNDS, local_steps=1, **settings)
    core.reset([0], [RunSettings(seed=0)])
    while not core.finished.all():
        core.step(np.zeros((1, len(core.knobs))))
    return core


def report_of(**settings: Any) -> tuple[PrivacyReport, float]:
    """The report, and the noise multiplier of the rounds."""
    core = play(**settings)
    return privacy_report(core, 0), core.history[0][-1].get("noise_multiplier", math.nan)


def test_a_sound_run_certifies_what_it_spent() -> None:
    report, sigma = report_of(epsilon=5.0)
    assert report.certified == report.spent == pytest.approx(5, rel=1e-5)
    assert report.spent == pytest.approx(epsilon_of(math.sqrt(ROUNDS) / sigma, 1e-5), rel=1e-5)
    assert (report.uncovered, report.uploads_view, report.at_small_delta) == ((), None, None)
    spent, shown, noise, basis, adaptive = report.lines()
    assert noise == "noise              seeded: whoever knows the seed can subtract it"
    assert shown.startswith("shown, not covered exact figures of the clients: ")
    assert spent == "epsilon            5 certified, 5 spent of 5 at delta 1e-05 (GDP filter)"
    assert basis == (
        "holds for          unit one client, add-remove (one client more or less); against whoever sees the released "
        "models, not the server; no amplification"
    )
    assert (
        adaptive == "adaptive           no, the noise multipliers were fixed in advance: figures by any accountant hold"
    )


def test_a_run_that_stopped_early_certifies_its_target_and_reads_its_odometer() -> None:
    core = make_core(1, clients=CLIENTS, rounds=ROUNDS, local_steps=1, epsilon=5.0)
    core.reset([0], [RunSettings(seed=0)])
    for _ in range(ROUNDS // 2):
        core.step(np.zeros((1, 1)))
    report = privacy_report(core, 0)
    assert (report.certified, report.exact) == (5.0, False)
    assert report.spent < report.odometer < 5
    assert f"5 certified, {report.spent:.4g} spent of 5" in report.lines()[0]
    assert f"odometer {report.odometer:.4g}" in report.lines()[0]


def test_a_server_that_sees_single_uploads_gets_no_amplification_and_the_shares_of_the_cohorts_that_came() -> None:
    core = play(epsilon=1.0, placement="distributed", sampling_rate=0.5)
    report, rounds = privacy_report(core, 0), core.history[0]
    squares = [one["participants"] / one["noise_multiplier"] ** 2 for one in rounds]
    assert len({one["participants"] for one in rounds}) > 1
    assert report.uploads_view == pytest.approx(epsilon_of(math.sqrt(sum(squares)), 1e-5), rel=1e-6)
    assert report.uploads_view > 3 * report.spent
    assert "sum and does not know the cohort; amplified by secret sampling at rate 0.5" in report.basis
    assert "zero-out" in report.uploads_basis
    assert report.uploads_basis.endswith("who takes part; no amplification")


def test_noise_of_the_clients_also_shows_what_single_uploads_tell() -> None:
    report, sigma = report_of(epsilon=5.0, placement="distributed")
    expected = epsilon_of(math.sqrt(ROUNDS * CLIENTS) / sigma, 1e-5)
    assert report.uploads_view == pytest.approx(expected, rel=1e-5)
    assert report.lines()[-1].startswith(f"single uploads     {expected:.4g}")


def test_a_weak_delta_is_shown_beside_a_small_one() -> None:
    with pytest.warns(UserWarning, match="delta"):
        report, sigma = report_of(epsilon=2.0, delta=0.2)
    assert report.at_small_delta == pytest.approx(epsilon_of(math.sqrt(ROUNDS) / sigma, 1e-5), rel=1e-5)


def test_a_published_run_shows_claim_certificate_and_what_is_uncovered() -> None:
    report, sigma = report_of(method="fedglp-adp", guarantee="as-published", epsilon=5.0)
    assert report.spent == pytest.approx(5, rel=1e-4)
    assert report.certified is None
    assert report.updates_only > 0
    assert len(report.uncovered) == 2
    claimed, certified, uncovered = report.lines()[:3]
    assert claimed.startswith("claimed epsilon    5 of 5")
    assert certified.startswith("certified epsilon  none (the noise on the updates alone: ")
    assert "masks built from each client's own upload" in uncovered
    covered, sigma = report_of(method="feddpa", guarantee="as-published", epsilon=5.0)
    assert covered.certified == covered.updates_only
    assert covered.certified == pytest.approx(epsilon_of(math.sqrt(ROUNDS) / sigma, 1e-5), rel=1e-5)


def test_exact_figures_before_a_controller_leave_nothing_certified() -> None:
    report, _ = report_of(epsilon=5.0, signals="paper")
    assert report.certified is None
    assert report.updates_only == pytest.approx(5, rel=1e-5)
    assert "exact figures that the controller saw: clipped_share, trimmed_accuracy, trimmed_loss" in report.uncovered


def test_without_noise_nothing_is_certified_and_json_has_no_infinity() -> None:
    report, _ = report_of(method="fedavg", epsilon=math.inf, knobs="none")
    assert report.spent == math.inf
    assert report.uncovered == ("the updates themselves, without noise",)
    assert report.as_json()["spent"] == "inf"
    local, _ = report_of(method="local-only", knobs="none")
    assert local.spent == 0
    assert local.certified == 0


def test_exact_signals_are_printed_as_uncovered_in_a_sound_run() -> None:
    report = privacy_report(play(signals="paper"), 0)
    assert report.certified is None
    (line,) = [line for line in report.lines() if line.startswith("shown, not covered")]
    assert "exact figures that the controller saw" in line
    assert not any("the controller saw" in line for line in privacy_report(play(), 0).lines())
