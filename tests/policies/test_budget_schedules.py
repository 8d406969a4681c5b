"""Budget schedules: what every round really costs, against the formulas, at sampling rate 1 and below."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants.analysis.rdp import compute_rdp

from envs.knobs import plan_values
from fl_core.base.errors import InputError
from fl_core.privacy.filters import RenyiFilter
from fl_core.privacy.ledger import Ledger
from fl_core.run.charging import Charging
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan
from policies import CONTROLLERS, Controller, make_controller
from policies.budget_schedules import held_pace
from tests.fl_core.privacy.independent import require_within_budget
from tests.policies.conftest import make_view, observe

BUDGET = [name for name in CONTROLLERS if name.startswith("budget-")]
RATES = [1.0, 0.2]


def spent_by(controller: Controller, rate: float, epsilon: float = 6.0) -> tuple[np.ndarray, Ledger]:
    """Part of the whole budget that each round costs `[rounds]`, 0 for those refused, by σ² or by Opacus' RDP."""
    view = controller.view
    config = FederationConfig(epsilon=epsilon, sampling_rate=rate, rounds=view.rounds)
    recipe = config.recipe()
    charging = Charging(config, recipe, [Charging.prepare(config, recipe, epsilon)])
    action = None
    for index in range(view.rounds):
        if index % view.decision_rounds == 0:
            action, _ = controller.predict(observe(view, index))
        values = [np.atleast_1d(knob.decode(action[i : i + 1].astype(float))) for i, knob in enumerate(view.knobs)]
        plan = RoundPlan.from_values(1, plan_values(view.knobs, values))
        charging.charge(plan, np.array([True]), np.array([index]), lambda row: 1.0)
    (ledger,) = charging.ledgers
    costs = np.zeros(view.rounds)
    for charge in ledger.charges:
        sigma = charge.noise_multiplier
        if rate == 1:
            costs[charge.round] = sigma**-2
        else:
            assert isinstance(ledger._filter, RenyiFilter)
            order = ledger._filter.order
            costs[charge.round] = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=[order])[0]
    return costs / ledger._filter.budget, ledger


def weights_of(formula: Callable[[int, int], float], rounds: int) -> np.ndarray:
    weights = np.array([formula(t, rounds) for t in range(1, rounds + 1)])
    return weights / weights.sum()


SPLITS: dict[str, Callable[[int, int], float]] = {
    "budget-uniform": lambda t, T: 1.0,
    "budget-linear": lambda t, T: 0.25 + 0.75 * (t - 1) / (T - 1),
    "budget-linear:5": lambda t, T: 5 - 4 * (t - 1) / (T - 1),
    "budget-step": lambda t, T: 0.25 if t <= T / 2 else 1.0,
    "budget-step:8:0.2": lambda t, T: 8.0 if t <= T / 5 else 1.0,
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("spec", SPLITS)
def test_the_whole_budget_is_split_in_proportion_to_the_formula(spec: str, rate: float) -> None:
    costs, ledger = spent_by(make_controller(spec, make_view(40, knobs="budget_pace")), rate)
    assert costs == pytest.approx(weights_of(SPLITS[spec], 40), rel=2e-4)
    assert ledger.remaining_share < 1e-4
    assert ledger.epsilon_by("rdp" if rate < 1 else "gdp") <= 6.0


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("spec", "beta"), [("budget-exponential", 2.0), ("budget-exponential:0.7", 0.7)])
def test_the_increasing_schedule_is_that_of_the_paper_without_the_factor_t(spec: str, beta: float, rate: float) -> None:
    """ε^t = exp(−β(1 − (t/T)²))·ε_r/(T − t + 1), ε_r what is left; no round passes its equal share (eq. 9)."""
    costs, ledger = spent_by(make_controller(spec, make_view(40, knobs="budget_pace")), rate)
    left = 1.0
    for t, cost in enumerate(costs, start=1):
        equal = left / (40 - t + 1)
        assert cost == pytest.approx(math.exp(-beta * (1 - (t / 40) ** 2)) * equal, rel=5e-4)
        assert cost <= equal * (1 + 1e-5)
        left -= cost
    assert np.all(np.diff(costs) > 0)
    assert ledger.remaining_share < 1e-4


@pytest.mark.parametrize("rate", RATES)
def test_the_printed_schedule_has_the_factor_t_and_ends_the_run_early(rate: float) -> None:
    """At T = 100 and β = 2 round 73 would take all that is left; the ledger stops at 1e-4 of the budget before."""
    costs, ledger = spent_by(make_controller("budget-printed", make_view(100, knobs="budget_pace")), rate)
    left, t = 1.0, 1
    while left >= 1e-4:
        printed = math.exp(-2 * (1 - (t / 100) ** 2)) * left * t / (100 - t + 1)
        assert costs[t - 1] == pytest.approx(min(printed, left), rel=1e-3)
        left, t = left - costs[t - 1], t + 1
    assert 60 < t <= 73
    assert not costs[t - 1 :].any()
    assert ledger.remaining_share < 1e-4
    require_within_budget(ledger)


@pytest.mark.parametrize("spec", [*BUDGET, "budget-linear:5"])
@pytest.mark.parametrize(("rounds", "every"), [(10, 4), (12, 3), (5, 5), (3, 8), (1, 1), (2, 1)])
def test_decisions_of_several_rounds_spend_what_the_schedule_gives_these_rounds(
    spec: str, rounds: int, every: int
) -> None:
    single, _ = spent_by(make_controller(spec, make_view(rounds, knobs="budget_pace")), 1.0)
    held, ledger = spent_by(make_controller(spec, make_view(rounds, every, knobs="budget_pace")), 1.0)
    for first in range(0, rounds, every):
        block = slice(first, first + every)
        assert held[block].sum() == pytest.approx(single[block].sum(), rel=1e-3, abs=1e-6)
    assert ledger.remaining_share < 1e-4


@settings(max_examples=60, deadline=None)
@given(kept=st.floats(0, 1), left=st.integers(1, 500), data=st.data())
def test_a_held_pace_keeps_the_part_asked_for(kept: float, left: int, data: Any) -> None:
    rounds = data.draw(st.integers(1, left))
    pace = held_pace(kept, left, rounds)
    remaining = 1.0
    for index in range(rounds):
        remaining *= 1 - min(1.0, pace / (left - index))
    assert remaining == pytest.approx(kept, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(BUDGET),
    rate=st.sampled_from(RATES),
    rounds=st.integers(1, 60),
    epsilon=st.floats(0.3, 30),
    data=st.data(),
)
def test_no_schedule_overspends_or_leaves_anything(
    name: str, rate: float, rounds: int, epsilon: float, data: Any
) -> None:
    numbers = {"beta": st.floats(1e-3, 4), "ratio": st.floats(0.02, 50), "at": st.floats(0.01, 0.99)}
    given_values = [data.draw(numbers[one.name]) for one in CONTROLLERS[name].parameters]
    spec = ":".join([name, *map(str, given_values)])
    costs, ledger = spent_by(make_controller(spec, make_view(rounds, knobs="budget_pace")), rate, epsilon)
    require_within_budget(ledger)
    assert ledger.epsilon_by("gdp" if rate == 1 else "rdp") <= epsilon
    assert costs.sum() <= 1
    assert ledger.remaining_share < 1e-4


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("budget-exponential:9", r"'budget-exponential:9' needs budget_pace 0\.000\d+ in round 1 of 40"),
        ("budget-step:0.001", r"needs budget_pace 0\.002 in round 1 of 40, but it must be in \[0\.01, 100\]"),
        ("budget-linear:0", "ratio of controller 'budget-linear' is 0, but it must be a finite number above 0"),
        ("budget-step:1:1", "at of controller 'budget-step' is 1, but"),
        ("budget-uniform:1", "takes no parameters|takes at most 0"),
    ],
)
def test_what_the_knob_cannot_do_is_refused_and_never_saturates_silently(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_controller(spec, make_view(40, knobs="budget_pace"))


def test_other_knobs_keep_their_default() -> None:
    view = make_view(10, knobs="clip_norm,budget_pace")
    action, _ = make_controller("budget-linear", view).predict(observe(view, 3, clip_norm=5.0))
    assert view.knobs[0].decode(action[:1].astype(float)) == pytest.approx(view.knobs[0].default, rel=1e-6)


@pytest.mark.parametrize("rate", RATES)
def test_a_budget_falls_where_beta_is_below_0(rate: float) -> None:
    view = make_view(knobs="budget_pace", rounds=12)
    costs, ledger = spent_by(make_controller("budget-exponential:-1", view), rate)
    left, expected = 1.0, []
    for t in range(1, 13):
        expected.append(left * min(1.0, math.exp(1 - (t / 12) ** 2) / (12 - t + 1)))
        left -= expected[-1]
    np.testing.assert_allclose(costs, expected, rtol=1e-3)
    assert costs.sum() == pytest.approx(1, abs=1e-3)
    assert (np.diff(costs) < 0).all()
    require_within_budget(ledger)
