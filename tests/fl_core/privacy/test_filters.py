from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_core.privacy import accounting
from fl_core.privacy.conversion import renyi_budget, renyi_epsilon
from fl_core.privacy.curves import rdp_closed_form, rdp_of_order, rdp_slack
from fl_core.privacy.filters import RenyiFilter, filter_for


def exact_delta(epsilon: float, q: float, sigma: float) -> float:
    """δ(ε) of one sampled Gaussian, the direction that removes a client."""
    return q * accounting.gdp_delta(math.log1p(math.expm1(epsilon) / q), 1 / sigma)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 9.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("order", [1.3, 2.0, 3.5, 12.0, 60.0])
def test_the_tight_conversion_never_certifies_less_than_that_of_balle(
    epsilon: float, delta: float, order: float
) -> None:
    plain = epsilon - float(rdp_slack(delta, (order,))[0])
    budget = renyi_budget(epsilon, delta, order)
    assert budget >= plain
    if budget > 1e-3:
        assert renyi_epsilon(budget, delta, order) == pytest.approx(epsilon, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("q", "sigma"), [(1.0, 3.0), (0.1, 1.0), (0.01, 0.7), (0.5, 2.0), (0.9, 8.0)])
def test_the_tight_conversion_holds_for_the_exact_delta_of_one_release(q: float, sigma: float) -> None:
    for order in (1.2, 1.5, 2.0, 3.3, 8.0, 20.0, 90.0):
        spent = rdp_of_order(q, sigma, order)
        for epsilon in (0.05, 0.2, 1.0, 3.0, 6.0):
            least = exact_delta(
                epsilon, q, sigma
            )  # what the budget is for at any smaller δ must be below what is spent
            if 1e-12 < least < 0.5:
                assert renyi_budget(epsilon, 0.999 * least, order) < spent


def test_the_tight_conversion_holds_for_a_mechanism_of_two_outcomes() -> None:
    """Randomised response attains conversions; its Rényi divergence and its δ have closed forms."""
    for p in (0.6, 0.9, 0.99, 0.9999):
        for order in (1.5, 2.0, 5.0, 30.0):
            loss = math.log(p / (1 - p))
            spent = math.log(p * math.exp((order - 1) * loss) + (1 - p) * math.exp(-(order - 1) * loss)) / (order - 1)
            for epsilon in np.linspace(0.02, 0.98, 7) * loss:
                delta = p - math.exp(epsilon) * (1 - p)
                assert renyi_budget(float(epsilon), 0.9999 * delta, order) < spent


def test_the_tight_conversion_is_attained_where_loss_takes_its_two_values() -> None:
    """The worst pair for (α, R) has two outcomes; its δ must come near what the conversion says."""
    epsilon, delta, order = 1.0, 1e-3, 4.0
    budget, best = renyi_budget(epsilon, delta, order), 0.0
    for up in np.linspace(epsilon + 0.05, epsilon + 3, 120):
        for down in np.geomspace(1e-5, 0.9, 400):
            mass = (1 - math.exp(-down)) / (math.exp(up) - math.exp(-down))
            moment = mass * math.exp(order * up) + (1 - mass) * math.exp(-order * down)
            if math.log(moment) <= (order - 1) * budget:
                best = max(best, mass * (math.exp(up) - math.exp(epsilon)))
    assert 0.95 * delta < best <= delta * (1 + 1e-6)


@pytest.mark.parametrize(
    ("epsilon", "q", "rounds", "before", "after"),
    [(1.0, 0.01, 40, 0.237, 0.182), (8.0, 0.01, 40, 0.162, 0.085), (8.0, 0.1, 100, 0.067, 0.063)],
)
def test_the_price_of_adaptivity_is_lower_than_at_whole_orders(
    epsilon: float, q: float, rounds: int, before: float, after: float
) -> None:
    by_pld = accounting.noise_multiplier_for(epsilon, 1e-5, q, rounds)
    found = filter_for(epsilon, 1e-5, q, rounds)
    price = found.noise_multiplier(found.budget / rounds) / by_pld - 1
    assert 0.03 < price < after < before


def test_a_filter_at_its_budget_is_within_the_target_by_pld() -> None:
    for epsilon, q, rounds in [(1.0, 0.01, 40), (8.0, 0.1, 100), (0.3, 0.5, 10)]:
        found = filter_for(epsilon, 1e-5, q, rounds)
        sigma = found.noise_multiplier(found.budget / rounds)
        assert accounting.epsilon([(sigma, q, rounds)], 1e-5, "pld") <= epsilon
        assert found.epsilon(found.budget) <= epsilon
        assert rounds * rdp_closed_form(q, sigma, (2,))[0] > 0


@given(st.floats(-9, 9), st.floats(0.05, 0.999), st.floats(1.05, 200.0))
def test_noise_for_a_cost_is_found_at_any_cost(power: float, rate: float, order: float) -> None:
    """Where hardly any noise is asked for, whole orders stand in, and their cost is above what sampling could give."""
    made = RenyiFilter(1e-5, 1.0, rate, order, 1.0)
    sigma = made.noise_multiplier(10.0**power)
    assert made.cost(sigma * (1 + 1e-9)) <= 10.0**power * (1 + 1e-8)
