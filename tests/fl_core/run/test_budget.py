"""A budget stated as a noise multiplier is the epsilon of all rounds at it; stated twice, it is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from opacus.accountants import RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fl_core.base.errors import InputError
from fl_core.run.budget import planned_epsilon
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

SMALL = {"clients": 8, "rounds": 4, "delta": 0.01, "local_steps": 1}


def gaussian_epsilon(sigma: float, rounds: int, delta: float) -> float:
    """The epsilon of a Gaussian mechanism composed with itself, by the closed form of Balle and Wang."""
    mu = math.sqrt(rounds) / sigma
    return float(brentq(lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta, 0, 300))


@pytest.mark.parametrize(("sigma", "rounds", "delta"), [(4.0, 40, 1e-5), (1.3, 100, 50**-1.1), (1.0, 20, 0.1)])
def test_epsilon_of_full_cohorts_is_the_closed_form(sigma: float, rounds: int, delta: float) -> None:
    found = planned_epsilon(sigma, delta, 1.0, rounds, "add-remove")
    assert found == pytest.approx(gaussian_epsilon(sigma, rounds, delta), rel=1e-6)
    halved = planned_epsilon(2 * sigma, delta, 1.0, rounds, "replace-one")
    assert halved == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize(
    ("sigma", "rounds", "delta", "printed"),
    [(0.8, 100, 50**-1.1, 112.56), (1.0, 100, 50**-1.1, 77.0), (1.3, 100, 50**-1.1, 50.01), (3.97, 20, 0.1, 2.0)],
)
def test_as_published_it_is_what_opacus_says_and_near_what_the_papers_print(
    sigma: float, rounds: int, delta: float, printed: float
) -> None:
    opacus = RDPAccountant()
    opacus.history = [(sigma, 1.0, rounds)]
    found = planned_epsilon(sigma, delta, 1.0, rounds, "add-remove", claim=True)
    assert found == pytest.approx(opacus.get_epsilon(delta), rel=1e-8)
    assert found == pytest.approx(printed, rel=2e-3)


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_every_round_has_the_noise_that_is_given(guarantee: str, adjacency: str) -> None:
    config = FederationConfig(noise_multiplier=2.5, adjacency=adjacency, guarantee=guarantee, **SMALL)  # type: ignore[arg-type]
    federation = Federation(config)
    for _ in range(config.rounds):
        federation.run_round(RoundPlan.from_values(1, {"clip_norm": np.ones(1)}))
    books = federation.charging.books[0]
    assert [one.noise_multiplier for one in books.budget.charges] == [pytest.approx(2.5, rel=3e-6)] * 4
    assert all(one.noise_multiplier >= 2.5 for one in books.budget.charges)
    assert books.budget.epsilon == config.epsilon
    assert books.budget.epsilon_spent() == pytest.approx(config.epsilon, rel=1e-4)


def test_with_sampled_cohorts_a_plan_hands_out_the_noise_that_is_given() -> None:
    config = FederationConfig(noise_multiplier=1.2, sampling_rate=0.5, noise_schedule="fixed", **SMALL)  # type: ignore[arg-type]
    (budget,) = Federation(config).charging.budgets
    assert budget.uniform_noise_multiplier == pytest.approx(1.2, rel=1e-5)
    assert budget.uniform_noise_multiplier >= 1.2
    assert config.epsilon < gaussian_epsilon(1.2, 4, 0.01)  # amplified


def test_a_method_with_a_budget_of_its_own_spends_the_epsilon_of_the_equal_rounds() -> None:
    config = FederationConfig(method="adp-pfl", noise_multiplier=4.0, **SMALL)  # type: ignore[arg-type]
    federation = Federation(config)
    for _ in range(config.rounds):
        federation.run_round(RoundPlan.from_values(1, {"clip_norm": np.ones(1)}))
    charges = federation.charging.ledgers[0].charges
    sigmas = [one.noise_multiplier for one in charges]
    assert sigmas == sorted(sigmas, reverse=True)
    assert sum(sigma**-2 for sigma in sigmas) == pytest.approx(4 / 4.0**2, rel=1e-4)


def test_epsilon_follows_when_other_settings_change() -> None:
    config = FederationConfig(noise_multiplier=4.0, rounds=40)
    longer = replace(config, rounds=80)
    assert config.epsilon == pytest.approx(gaussian_epsilon(4.0, 40, 1e-5), rel=1e-6)
    assert longer.epsilon == pytest.approx(gaussian_epsilon(4.0, 80, 1e-5), rel=1e-6)
    assert replace(config, noise_multiplier=None, epsilon=3.0).epsilon == 3


@pytest.mark.parametrize("value", [0, -1, 0.0, math.nan, math.inf, 1e9, "2", True])
def test_a_noise_multiplier_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"noise_multiplier is .* must be a number in \[0\.01, 1e\+06\]"):
        FederationConfig(noise_multiplier=value)  # type: ignore[arg-type]


def test_a_budget_that_is_stated_twice_is_refused() -> None:
    twice = r"noise_multiplier is 2\.0 and epsilon is 7\.5, but each follows from the other; give one\."
    with pytest.raises(InputError, match=twice):
        FederationConfig(epsilon=7.5, noise_multiplier=2.0)
    config = FederationConfig(noise_multiplier=2.0, **SMALL)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"epsilon is 3\.0, but each follows"):
        Federation(config).start([0], [RunSettings(seed=0, epsilon=3.0)])
    with pytest.raises(InputError, match="epsilon is inf, but each follows"):
        replace(config, epsilon=math.inf)


def test_noise_that_no_budget_stands_for_is_refused() -> None:
    with pytest.raises(InputError, match="but method 'fedavg' adds no noise; leave it out"):
        FederationConfig(method="fedavg", noise_multiplier=1.0)
    with pytest.raises(InputError, match=r"2 rounds at delta 0\.1 have epsilon 0, but a budget must be in"):
        FederationConfig(noise_multiplier=1e5, rounds=2, delta=0.1)
