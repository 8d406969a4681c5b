"""Expected noise and signal to noise: against closed forms, other accountants, and a plain simulation."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from experiments.advice.advice import advise, as_json
from experiments.advice.signal import Signal, noise_multiplier_of
from fl_core import FederationConfig, register_dataset
from fl_core.data import datasets
from tests.import_graph import ROOT

ORACLES = json.loads((ROOT / "tests" / "oracles" / "accounting.json").read_text(encoding="utf-8"))["cases"]
FULL = [one for one in ORACLES.values() if len(one["segments_sigma_q_steps"]) == 1 and "exact_gdp" in one["epsilon"]]


def config_of(**changes: Any) -> FederationConfig:
    return FederationConfig(executor="vectorized", **changes)


@pytest.mark.parametrize("case", FULL, ids=str)
def test_the_noise_of_full_cohorts_is_that_of_the_oracles(case: dict[str, Any]) -> None:
    [[sigma, _, steps]] = case["segments_sigma_q_steps"]
    config = config_of(epsilon=case["epsilon"]["exact_gdp"], delta=case["delta"], rounds=steps, clients=50)
    assert sigma <= noise_multiplier_of(config) <= sigma * (1 + 2e-6)


def test_the_noise_of_full_cohorts_meets_the_closed_curve() -> None:
    mu = math.sqrt(40) / noise_multiplier_of(config_of(epsilon=7.5, rounds=40))
    delta = norm.cdf(-7.5 / mu + mu / 2) - math.exp(7.5) * norm.cdf(-7.5 / mu - mu / 2)
    assert 0.9999e-5 < delta <= 1e-5


def test_the_noise_of_sampled_cohorts_meets_the_budget_by_another_accountant() -> None:
    sigma = noise_multiplier_of(config_of(epsilon=8.0, sampling_rate=0.1, rounds=30, clients=200))
    spent = PLDAccountant()
    spent.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(sigma)), 30)
    assert 7.99 < spent.get_epsilon(1e-5) <= 8.0


def test_what_pays_for_telemetry_is_taken_off() -> None:
    plain, paying = noise_multiplier_of(config_of()), noise_multiplier_of(config_of(telemetry_share=0.19))
    assert paying == pytest.approx(plain / 0.9)


def test_a_method_with_a_schedule_of_its_own_has_the_noise_of_its_mean_precision() -> None:
    even = noise_multiplier_of(config_of(rounds=5))
    own = noise_multiplier_of(config_of(rounds=5, set="budget=printed", method="acdp-pfsd"))
    assert own == pytest.approx(even, rel=1e-6)  # the sum of 1/σ² is the budget, however it is split


@pytest.mark.parametrize("agreement", [1.0, 0.3])
@pytest.mark.parametrize("by_upload", [False, True])
def test_signal_to_noise_is_that_of_a_plain_simulation(agreement: float, by_upload: bool) -> None:
    draw = np.random.default_rng(0)
    clients, size, rounds, clip, sigma = 60, 4000, 25, 0.7, 3.0
    common = np.eye(size)[0]
    signal, noise = np.zeros(size), np.zeros(size)
    for _ in range(rounds):
        rest = draw.normal(size=(clients, size))
        rest[:, 0] = 0
        rest -= rest.mean(0)  # what clients do not share cancels out
        rest /= np.linalg.norm(rest, axis=1, keepdims=True)
        updates = clip * (agreement * common + math.sqrt(1 - agreement**2) * rest)
        assert np.linalg.norm(updates, axis=1) == pytest.approx(clip)
        signal += updates.sum(0)
        uploads = clients if by_upload else 1
        noise += draw.normal(scale=clip * sigma, size=(uploads, size)).sum(0)
    expected = Signal(sigma, clients, rounds, size, by_upload)
    assert signal @ common / np.linalg.norm(noise) == pytest.approx(agreement * expected.strength, rel=0.03)
    assert expected.strength == pytest.approx(math.sqrt(rounds) * expected.of_round)


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("a dataset was loaded")


@pytest.mark.parametrize("changes", [{}, {"dataset": "cifar10", "model": "mlp", "learning_rate": 0.1}])
def test_no_dataset_is_loaded(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", _refused)
    monkeypatch.setattr(datasets, "_load", _refused)
    assert advise(config_of(**changes)).own.signal.strength > 0


def test_of_data_of_ones_own_no_sample_matters() -> None:
    draw, told = np.random.default_rng(0), []
    for name in ("advised-one", "advised-two"):
        images, labels = draw.integers(0, 255, (60, 8, 8)).astype(np.uint8), draw.permutation(np.arange(60) % 5)
        register_dataset(name, (images, labels))
        told.append(as_json(advise(config_of(dataset=name, clients=10))))
    assert told[0] == told[1]
