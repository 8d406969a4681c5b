from __future__ import annotations

import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from fl_core.base.errors import InputError
from fl_core.privacy import accounting
from fl_core.privacy.accountants import ACCOUNTANTS
from fl_core.privacy.accounting import ORDERS, Segment
from fl_core.privacy.curves import rdp_closed_form, rdp_of_order, rdp_slack
from fl_core.privacy.history import group, merge

mpmath = pytest.importorskip("mpmath")

ORACLE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "oracles" / "accounting.json").read_text())
CASES: dict[str, Any] = ORACLE["cases"]
FULL = [name for name, case in CASES.items() if all(q == 1 for _, q, _ in case["segments_sigma_q_steps"])]


def segments_of(name: str) -> list[Segment]:
    return [(sigma, q, steps) for sigma, q, steps in CASES[name]["segments_sigma_q_steps"]]


@cache
def pld_of(name: str) -> float:
    return accounting.epsilon(segments_of(name), CASES[name]["delta"], "pld")


def exact_log_delta(epsilon: float, mu: float) -> float:
    """The curve of μ-GDP with 60 digits more than its cancellation eats."""
    with mpmath.workdps(200):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        delta = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return float(mpmath.log(delta))


# --- Oracle values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_pld_matches_the_oracle(name: str) -> None:
    case = CASES[name]
    pld = pld_of(name)
    assert pld == pytest.approx(case["epsilon"]["pld"], rel=3e-5)
    assert pld <= accounting.epsilon(segments_of(name), case["delta"], "rdp")


@pytest.mark.parametrize("name", CASES)
def test_rdp_is_as_tight_as_the_better_of_both_libraries(name: str) -> None:
    case = CASES[name]
    rdp = accounting.epsilon(segments_of(name), case["delta"], "rdp")
    best = min(case["epsilon"]["rdp_opacus"], case["epsilon"]["rdp_dp_accounting"])
    assert pld_of(name) < rdp <= best * (1 + 1e-9)  # the oracle's orders go by tenths, and its conversion is not tight


@pytest.mark.parametrize("name", [name for name in CASES if name != "s7_het_lin"])
def test_prv_matches_the_oracle_and_stays_near_pld(name: str) -> None:
    case = CASES[name]
    prv = accounting.epsilon(segments_of(name), case["delta"], "prv")
    assert prv == pytest.approx(case["epsilon"]["prv_opacus"], rel=3e-5)
    assert prv - pld_of(name) <= 0.012


@pytest.mark.parametrize("name", FULL)
def test_a_full_cohort_follows_the_exact_curve(name: str) -> None:
    case = CASES[name]
    exact = case["epsilon"]["exact_gdp"]
    assert accounting.epsilon(segments_of(name), case["delta"], "gdp") == pytest.approx(exact, rel=1e-10)
    assert -1e-12 <= pld_of(name) - exact <= 1e-5
    assert accounting.gdp_epsilon(case["mu"], case["delta"]) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("row", [row for row in ORACLE["rdp_values"] if row["alpha"] == int(row["alpha"])])
def test_rdp_of_one_step_matches_the_oracle(row: dict[str, float]) -> None:
    order = (int(row["alpha"]),)
    assert accounting.rdp(row["q"], row["sigma"], order)[0] == pytest.approx(row["numeric"], rel=1e-12)
    assert rdp_closed_form(row["q"], row["sigma"], order)[0] == pytest.approx(row["numeric"], rel=1e-11)


@pytest.mark.parametrize("row", ORACLE["same_sample_joint"])
def test_releases_of_one_sample_are_one_release(row: dict[str, float]) -> None:
    joint = accounting.joint_noise_multiplier([row["z_update"], row["z_bit"]])
    assert joint == pytest.approx(row["z_eff"], rel=1e-12)
    steps = int(row["T"])
    together = accounting.epsilon([(joint, row["q"], steps)], row["delta"])
    assert together == pytest.approx(row["joint_pld"], rel=3e-5)
    apart = accounting.epsilon([(row["z_update"], row["q"], steps), (row["z_bit"], row["q"], steps)], row["delta"])
    assert apart == pytest.approx(row["separate_pld_WRONG"], rel=1e-4)
    assert apart < together


@pytest.mark.parametrize("row", ORACLE["calibration"])
def test_noise_for_a_budget_never_overspends_and_is_tight(row: dict[str, float]) -> None:
    steps = int(row["T"])
    for accountant in ("pld", "rdp", *(["gdp"] if row["q"] == 1 else [])):
        sigma = accounting.noise_multiplier_for(row["eps"], row["delta"], row["q"], steps, accountant)
        spent = accounting.epsilon([(sigma, row["q"], steps)], row["delta"], accountant)
        assert row["eps"] * (1 - 1e-4) <= spent <= row["eps"]
        if accountant == "pld":
            assert row["z_uniform_pld"] * 0.998 <= sigma <= row["z_uniform_pld"] * (1 + 1e-5)
    if row["q"] == 1:
        assert sigma == pytest.approx(row["z_uniform_gdp"], rel=1e-5)


# --- Independent computations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "sigma", "alpha"), [(0.1, 1.0, 8), (0.01, 4.0, 32), (0.7, 2.0, 3)])
def test_rdp_is_the_larger_divergence_of_the_two_directions(q: float, sigma: float, alpha: int) -> None:
    def divergence(sign: int) -> float:
        def density(x: float) -> float:
            ratio = 1 - q + q * math.exp((2 * x - 1) / (2 * sigma**2))
            power = alpha if sign > 0 else 1 - alpha
            return math.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * ratio**power

        value = integrate.quad(density, -30 * sigma, 30 * sigma + alpha, epsabs=0, epsrel=1e-12, limit=500)[0]
        return math.log(value) / (alpha - 1)

    remove, add = divergence(1), divergence(-1)
    assert rdp_closed_form(q, sigma, (alpha,))[0] == pytest.approx(remove, rel=1e-8)
    assert add <= remove


def test_closed_form_agrees_with_opacus_at_every_order() -> None:
    for q, sigma in [(0.1, 1.0), (1e-4, 0.6), (0.95, 30.0), (1.0, 2.0), (0.3, 0.05)]:
        np.testing.assert_allclose(rdp_closed_form(q, sigma, ORDERS), accounting.rdp(q, sigma), rtol=1e-11, atol=2e-15)


@pytest.mark.parametrize(
    ("q", "sigma", "order"),
    [
        *((0.1, 1.0, 2.5), (0.5, 4.0, 3.3), (0.2, 0.9, 1.5), (0.01, 0.8, 9.7), (1e-3, 30.0, 50.5), (0.3, 0.06, 1.3)),
        *((1e-6, 1e4, 2.5), (1e-4, 0.6, 12.3), (0.999, 0.5, 4.4), (0.01, 100.0, 600.5), (0.9, 2.0, 1.01)),
    ],
)
def test_rdp_of_fractional_orders_has_every_digit(q: float, sigma: float, order: float) -> None:
    with mpmath.workdps(40):

        def integrand(t: Any) -> Any:
            ratio = 1 - q + q * mpmath.exp(t / sigma - mpmath.mpf(1) / (2 * mpmath.mpf(sigma) ** 2))
            return ratio**order * mpmath.npdf(t)

        peak = order / sigma
        places = sorted({-15.0, -5.0, 0.0, 5.0, peak - 5, peak, peak + 5, peak + 15})
        exact = float(mpmath.log(mpmath.quad(integrand, places)) / (order - 1))
    assert rdp_of_order(q, sigma, order) == pytest.approx(exact, rel=1e-10)


def test_rdp_grows_with_its_order_from_whole_to_fractional_and_back() -> None:
    for q, sigma in [(0.1, 1.0), (0.7, 3.0), (1.0, 2.0), (0.01, 0.03)]:
        values = [rdp_of_order(q, sigma, 1.1 + tenth / 10) for tenth in range(60)]
        assert values == sorted(values)


def test_closed_form_keeps_its_digits_where_opacus_loses_them() -> None:
    q, sigma, alpha = 1e-6, 1e4, 2
    with mpmath.workdps(60):
        exact = float(mpmath.log(1 + mpmath.mpf(q) ** 2 * mpmath.expm1(1 / mpmath.mpf(sigma) ** 2)))
    assert rdp_closed_form(q, sigma, (alpha,))[0] == pytest.approx(exact, rel=1e-9)
    assert accounting.rdp(q, sigma, (alpha,))[0] == pytest.approx(exact, abs=1e-15)


@pytest.mark.parametrize("mu", [1e-4, 1e-3, 0.03, 0.5, 1.0, 3.0, 12.0, 100.0])
def test_gaussian_curve_holds_to_many_digits_from_end_to_end(mu: float) -> None:
    for delta in (0.3, 1e-2, 1e-5, 1e-9, 1e-12):
        epsilon = accounting.gdp_epsilon(mu, delta)
        if epsilon == 0:
            assert math.erf(mu / math.sqrt(8)) <= delta
            continue
        assert accounting.gdp_delta(epsilon, mu) <= delta * (1 + 1e-12)
        assert exact_log_delta(epsilon, mu) == pytest.approx(math.log(delta), abs=1e-8)
        assert accounting.gdp_mu(epsilon, delta) == pytest.approx(mu, rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 60.0, 1000.0])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-5, 1e-12])
def test_mu_of_a_budget_meets_it_exactly(epsilon: float, delta: float) -> None:
    mu = accounting.gdp_mu(epsilon, delta)
    log_delta = exact_log_delta(epsilon, mu)
    assert log_delta == pytest.approx(math.log(delta), abs=1e-8)
    assert accounting.gdp_epsilon(mu, delta) <= epsilon * (1 + 1e-9)


def test_check_value_of_the_specification() -> None:
    assert accounting.gdp_mu(4, 1e-5) == pytest.approx(0.92493, abs=1e-5)
    assert accounting.noise_multiplier_for(4, 1e-5, 1, 100, "gdp") == pytest.approx(10.8116, abs=1e-4)


@pytest.mark.parametrize(("mu", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (2.0, 1e-8), (6.0, 1e-3)])
def test_exact_curve_agrees_with_a_privacy_loss_distribution(mu: float, delta: float) -> None:
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=1e-4 if mu < 3 else 1e-3
    )
    assert 0 <= pld.get_epsilon_for_delta(delta) - accounting.gdp_epsilon(mu, delta) <= 1e-5


def test_pld_bound_at_tiny_delta_is_not_fooled_by_fft_noise() -> None:
    """At q close to 1 the exact curve is known to within a hair; the library alone falls below it."""
    mu, steps = 4.0, 100_000
    sigma = math.sqrt(steps) / mu
    almost = accounting.epsilon([(sigma, 1 - 1e-9, steps)], 1e-12)
    assert almost >= accounting.gdp_epsilon(mu, 1e-12) * (1 - 1e-6)


def test_one_subsampled_step_follows_its_own_curve() -> None:
    """δ(ε) = q·δ_Gauss(ln(1 + (e^ε − 1)/q)) for one step, the direction that removes a client."""
    q, sigma, delta = 0.05, 1.0, 1e-6
    epsilon = accounting.epsilon([(sigma, q, 1)], delta)
    exact = q * accounting.gdp_delta(math.log1p(math.expm1(epsilon) / q), 1 / sigma)
    assert exact <= delta
    assert exact == pytest.approx(delta, rel=1e-3)


# --- Structure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["rdp", "pld", "prv", "gdp"])
def test_empty_silent_and_naked_histories(accountant: str) -> None:
    q = 1.0 if accountant == "gdp" else 0.1
    assert accounting.epsilon([], 1e-5, accountant) == 0
    assert accounting.epsilon([(math.inf, q, 10), (1.0, q, 0), (1e300, q, 5)], 1e-5, accountant) == 0
    assert accounting.epsilon([(0.0, q, 1), (5.0, q, 1)], 1e-5, accountant) == math.inf
    assert accounting.noise_multiplier_for(math.inf, 1e-5, q, 10, accountant) == 0


@pytest.mark.parametrize("accountant", ["rdp", "pld", "gdp", "prv"])
def test_order_and_splitting_of_a_history_change_nothing(accountant: str) -> None:
    q = 1.0 if accountant == "gdp" else 0.2
    history = [(2.0, q, 3), (4.0, q, 5), (2.0, q, 2)]
    whole = accounting.epsilon([(4.0, q, 5), (2.0, q, 5)], 1e-5, accountant)
    assert accounting.epsilon(history, 1e-5, accountant) == pytest.approx(whole, rel=1e-12)


@settings(max_examples=4, deadline=None)
@given(
    sigma=st.floats(0.6, 30),
    q=st.floats(0.01, 1),
    steps=st.integers(1, 300),
    more=st.floats(1.05, 2),
    delta_exp=st.floats(-8, -2),
)
def test_more_noise_less_sampling_fewer_steps_never_cost_more(
    sigma: float, q: float, steps: int, more: float, delta_exp: float
) -> None:
    delta = 10**delta_exp
    for accountant in ("rdp", "pld"):
        epsilon = accounting.epsilon([(sigma, q, steps)], delta, accountant)
        slack = 1e-4 * epsilon + 1e-9
        assert accounting.epsilon([(sigma * more, q, steps)], delta, accountant) <= epsilon + slack
        assert accounting.epsilon([(sigma, q / more, steps)], delta, accountant) <= epsilon + slack
        assert accounting.epsilon([(sigma, q, max(1, int(steps / more)))], delta, accountant) <= epsilon + slack
        assert accounting.epsilon([(sigma, q, steps)], min(0.5, delta * more), accountant) <= epsilon + slack
        assert epsilon <= accounting.gdp_epsilon(math.sqrt(steps) / sigma, delta) * 1.5 + 1  # sampling never hurts


def test_joint_noise_multiplier_survives_the_ends_of_the_floats() -> None:
    assert accounting.joint_noise_multiplier([]) == math.inf
    assert accounting.joint_noise_multiplier([math.inf, 3.0]) == 3.0
    assert accounting.joint_noise_multiplier([0.0, 3.0]) == 0
    assert accounting.joint_noise_multiplier([1e200, 1e200]) == pytest.approx(1e200 / math.sqrt(2))
    assert accounting.joint_noise_multiplier([3.0, 4.0]) == pytest.approx(2.4)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_thousands_of_distinct_multipliers_are_bounded_from_above_by_few_groups(accountant: str) -> None:
    generator = random.Random(0)
    sigmas = [generator.uniform(4, 12) for _ in range(10_000)]
    history, most = [(sigma, 0.1, 1) for sigma in sigmas], ACCOUNTANTS[accountant].most_distinct
    assert len(group(merge(history), most)) <= most < len(history)
    epsilon = accounting.epsilon(history, 1e-5, accountant)
    # A filter's cost is a sum over the exact σ's: the bound may lie above it by the grouping only.
    total = np.sum([rdp_closed_form(0.1, sigma, (4, 5, 6, 7, 8, 9, 10)) for sigma in sigmas], axis=0)
    exact = float(np.min(total + rdp_slack(1e-5, (4, 5, 6, 7, 8, 9, 10))))
    if accountant == "rdp":
        assert exact * (1 - 1e-9) <= epsilon <= exact * 1.01
    else:
        assert 0.85 * exact <= epsilon <= exact * 1.01


def test_grouping_never_lowers_epsilon() -> None:
    for history in ([(2 + i / 40, 0.2, 1) for i in range(40)], [(2.0, 0.1 + i / 400, 1) for i in range(40)]):
        fine = ACCOUNTANTS["pld"].bound(merge(history), 1e-5)
        coarse = ACCOUNTANTS["pld"].bound(group(merge(history), 12), 1e-5)
        assert fine <= coarse <= 1.15 * fine
        assert len(group(merge(history), 12)) <= 12


@pytest.mark.parametrize("count", [60, 250])
def test_any_number_of_sampling_rates_is_composed(count: int) -> None:
    history = [(2.0, 0.05 + 0.1 * i / count, 1) for i in range(count)]
    pld, rdp = (accounting.epsilon(history, 1e-5, name) for name in ("pld", "rdp"))
    constant = accounting.epsilon([(2.0, 0.1, count)], 1e-5, "pld")
    assert 0.95 * constant < pld < 1.15 * constant  # the mean rate is 0.1; a mixture of rates costs a little more
    assert pld < rdp < 1.2 * pld


EXTREMES = [
    (sigma, q, steps, delta)
    for sigma in (1e-160, 1e-3, 0.3, 1e4, 1e160)
    for q in (1e-6, 0.3, 1.0)
    for steps, delta in ((1, 1e-12), (10_000, 1e-2), (10_000, 1e-12))
]


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_extreme_histories_get_an_answer(accountant: str) -> None:
    for sigma, q, steps, delta in EXTREMES:
        epsilon = accounting.epsilon([(sigma, q, steps)], delta, accountant)
        assert epsilon >= 0
        if q == 1:
            mu = math.sqrt(steps) / sigma
            assert epsilon >= accounting.gdp_epsilon(mu, delta) * (1 - 1e-9)


def test_prv_answers_or_refuses_in_one_sentence() -> None:
    answers = 0
    for sigma, q, steps, delta in EXTREMES:
        try:
            answers += accounting.epsilon([(sigma, q, steps)], delta, "prv") >= 0
        except InputError as error:
            answers += str(error).startswith("accountant is prv") and str(error).count(". ") == 0
    assert answers == len(EXTREMES)


@pytest.mark.parametrize(
    ("epsilon", "delta", "q", "steps"),
    [(0.01, 1e-12, 1.0, 10_000), (1000.0, 1e-12, 1.0, 1), (1000.0, 1e-5, 0.01, 10_000)],
)
def test_extreme_budgets_are_met(epsilon: float, delta: float, q: float, steps: int) -> None:
    sigma = accounting.noise_multiplier_for(epsilon, delta, q, steps)
    assert accounting.epsilon([(sigma, q, steps)], delta) <= epsilon


@pytest.mark.parametrize("accountant", ["rdp", "gdp"])
@pytest.mark.parametrize("epsilon", [0.01, 1000.0])
@pytest.mark.parametrize("steps", [1, 10_000])
def test_extreme_budgets_are_met_closely_in_few_evaluations(
    accountant: str, epsilon: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, evaluations = accounting._spent, []
    monkeypatch.setattr(accounting, "_spent", lambda *history: evaluations.append(history) or evaluate(*history))
    for q in (1.0,) if accountant == "gdp" else (1e-3, 0.3, 1.0):
        for delta in (1e-2, 1e-12):
            evaluations.clear()
            sigma = accounting.noise_multiplier_for(epsilon, delta, q, steps, accountant)
            assert len(evaluations) <= 30  # 22 at most when this was written
            spent = accounting.epsilon([(sigma, q, steps)], delta, accountant)
            assert epsilon * (1 - 1e-3) <= spent <= epsilon


def test_a_budget_below_the_reach_of_the_plain_conversion_is_met() -> None:
    sigma = accounting.noise_multiplier_for(0.01, 1e-12, 0.1, 10, "rdp")
    assert float(np.min(rdp_slack(1e-12))) > 0.01
    assert accounting.epsilon([(sigma, 0.1, 10)], 1e-12, "pld") < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accounting.epsilon([(1.0, 0.1, 1)], 1e-5, "rpd"), "accountant 'rpd' is unknown; did you mean"),
        (lambda: accounting.epsilon([(1.0, 0.1, 1)], 0.0), "delta is 0.0"),
        (lambda: accounting.epsilon([(1.0, 0.1, 1)], math.nan), "delta is nan"),
        (lambda: accounting.epsilon([(math.nan, 0.1, 1)], 1e-5), "noise_multiplier is nan"),
        (lambda: accounting.epsilon([(-1.0, 0.1, 1)], 1e-5), "noise_multiplier is -1.0"),
        (lambda: accounting.epsilon([(1.0, 0.0, 1)], 1e-5), "sampling_rate is 0.0"),
        (lambda: accounting.epsilon([(1.0, 1.1, 1)], 1e-5), "sampling_rate is 1.1"),
        (lambda: accounting.epsilon([(1.0, 0.1, -1)], 1e-5), "steps is -1"),
        (lambda: accounting.epsilon([(1.0, 0.1, 1)], 1e-5, "gdp"), "accountant is gdp"),
        (lambda: accounting.noise_multiplier_for(1.0, 1e-5, 0.5, 1, "gdp"), "accountant is gdp"),
        (lambda: accounting.noise_multiplier_for(0.0, 1e-5, 0.5, 1), "epsilon is 0.0"),
        (lambda: accounting.noise_multiplier_for(math.nan, 1e-5, 0.5, 1), "epsilon is nan"),
        (lambda: accounting.noise_multiplier_for(1.0, 1e-5, 0.5, 0), "steps is 0"),
        (lambda: accounting.gdp_mu(-1.0, 1e-5), "epsilon is -1.0"),
        (lambda: accounting.gdp_epsilon(-1.0, 1e-5), "mu is -1.0"),
        (lambda: accounting.rdp(0.1, 1.0, (1,)), "orders must be"),
    ],
)
def test_bad_values_are_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert str(caught.value).count(". ") == 0


def test_conversion_is_the_tighter_of_the_two_in_use() -> None:
    """The textbook conversion RDP + ln(1/δ)/(α − 1) is never below ours, ours never below the exact curve."""
    sigma, delta = 3.0, 1e-5
    ours = accounting.epsilon([(sigma, 1.0, 1)], delta, "rdp")
    textbook = min(a / (2 * sigma**2) + math.log(1 / delta) / (a - 1) for a in ORDERS)
    assert accounting.gdp_epsilon(1 / sigma, delta) < ours < textbook
