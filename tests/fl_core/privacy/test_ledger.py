from __future__ import annotations

import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_core.base.errors import InputError
from fl_core.base.files import digest
from fl_core.privacy import accounting, curves
from fl_core.privacy.curves import rdp_closed_form, rdp_slack
from fl_core.privacy.filters import renyi_order
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.releases import BudgetExhausted, Release
from fl_core.privacy.splits import split_noise_multiplier, update_noise_multiplier
from tests.fl_core.privacy.independent import require_within_budget

ORACLE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "oracles" / "accounting.json").read_text())
BUDGETS = [
    (4.0, 1e-5, 1.0, 100),
    (8.0, 1e-5, 0.1, 100),
    (1.0, 1e-3, 0.5, 20),
    (0.5, 1e-5, 0.01, 1000),
    (40.0, 1e-6, 0.3, 10),
    (0.05, 1e-8, 1.0, 3),
]


def update(noise_multiplier: float) -> list[Release]:
    return [Release("update", noise_multiplier)]


def spend_uniformly(ledger: Ledger, rounds: int) -> None:
    for index in range(rounds):
        ledger.charge(index, update(ledger.uniform_noise_multiplier))


# --- Check values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ORACLE["calibration"])
def test_uniform_schedule_matches_the_oracle(row: dict[str, float]) -> None:
    epsilon, delta, q, rounds = row["eps"], row["delta"], row["q"], int(row["T"])
    ledger = Ledger(epsilon, delta, q, rounds)
    if q == 1:
        assert ledger.uniform_noise_multiplier == pytest.approx(row["z_uniform_gdp"], rel=2e-6)
        assert ledger.accountant == "GDP filter"
    # The oracle's α* is whole and its conversion that of Balle et al.; ours are real and tight, for less noise.
    order = int(row["alpha_star"])
    budget = epsilon - float(rdp_slack(delta, (order,))[0])
    assert budget == pytest.approx(row["R_star"], rel=1e-12)
    at_oracle = rounds * rdp_closed_form(q, row["z_uniform_rdp_filter"], (order,))[0]
    assert at_oracle == pytest.approx(row["R_star"], rel=1e-9)
    if q < 1:
        best = renyi_order(epsilon, delta, q, rounds)
        assert ledger.accountant == f"Rényi filter at order {best:.4g}"
        assert abs(best - order) <= 1.2
        oracle = row["z_uniform_rdp_filter"]
        assert 0.99 * oracle <= ledger.uniform_noise_multiplier <= oracle * (1 + 2e-6)


def test_check_values_of_the_specification() -> None:
    assert Ledger(4, 1e-5, 1, 100).uniform_noise_multiplier == pytest.approx(10.8116, abs=1e-4)
    subsampled = Ledger(8, 1e-5, 0.1, 100)
    assert subsampled.accountant == "Rényi filter at order 3.177"
    assert subsampled.uniform_noise_multiplier == pytest.approx(0.9934, abs=5e-4)


@pytest.mark.parametrize("row", ORACLE["same_sample_joint"])
def test_releases_of_a_round_are_joined_before_amplification(row: dict[str, float]) -> None:
    ledger = Ledger(1000, row["delta"], row["q"], 100)
    for index in range(int(row["T"])):
        charge = ledger.charge(index, [Release("update", row["z_update"]), Release("clip-bit", row["z_bit"])])
        assert charge.noise_multiplier == pytest.approx(row["z_eff"], rel=1e-12)
    assert ledger.epsilon_by("pld") == pytest.approx(row["joint_pld"], rel=3e-5)
    assert row["joint_rdp"] * 0.97 <= ledger.epsilon_by("rdp") <= row["joint_rdp"] * (1 + 1e-9)


# --- The budget cannot be overspent -------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
def test_exactly_the_planned_rounds_fit(budget: tuple[float, float, float, int]) -> None:
    ledger = Ledger(*budget)
    spend_uniformly(ledger, budget[3])
    assert 0 <= ledger.remaining_share < 1e-4
    assert budget[0] * (1 - 1e-5) <= ledger.epsilon_spent() <= budget[0]
    require_within_budget(ledger)
    with pytest.raises(BudgetExhausted):
        ledger.charge(budget[3], update(ledger.uniform_noise_multiplier))
    with pytest.raises(BudgetExhausted):
        ledger.noise_multiplier_for_share(1.0)


@pytest.mark.parametrize("rounds", [1, 3, 7, 997, 10_000])
@pytest.mark.parametrize("q", [1.0, 0.05])
def test_long_uniform_schedules_neither_stop_early_nor_pass_the_budget(rounds: int, q: float) -> None:
    ledger = Ledger(3.0, 1e-5, q, rounds)
    sigma = ledger.uniform_noise_multiplier
    cost = ledger._filter.cost(sigma)
    assert math.fsum([ledger._filter.budget, *([-cost] * rounds)]) >= 0
    assert math.fsum([ledger._filter.budget, *([-cost] * (rounds + 1))]) < 0
    assert accounting.epsilon([(sigma, q, rounds)], 1e-5, "pld") <= 3.0


ACTIONS = st.one_of(
    st.tuples(st.just("share"), st.floats(1e-6, 1)),
    st.tuples(st.just("split"), st.floats(0.01, 1)),
    st.tuples(st.just("bit"), st.floats(0.01, 1)),
    st.tuples(st.just("sigma"), st.floats(0.05, 100)),
    st.tuples(st.just("hostile"), st.sampled_from([1e-300, 5e-324, 1e-8, 1e300, math.inf, math.nan, -1.0, 0.0])),
    st.tuples(st.just("hostile share"), st.sampled_from([0.0, -1.0, 1 + 1e-12, math.nan, math.inf, 1.0, 5e-324])),
)


def play(ledger: Ledger, actions: list[tuple[str, float]]) -> None:
    """Charge what each action asks for; what the ledger refuses must leave it as it was."""
    for index, (kind, value) in enumerate(actions):
        before = ledger.state_dict()
        try:
            if kind in ("sigma", "hostile"):
                ledger.charge(index, update(value))
                continue
            sigma = ledger.noise_multiplier_for_share(value)
            releases = update(sigma)
            if kind == "split":
                parts = split_noise_multiplier(sigma, {"update": 0.7, "norms": 0.2, "loss": 0.1})
                releases = [Release(name, part) for name, part in parts.items()]
            if kind == "bit":
                releases = [Release("update", update_noise_multiplier(sigma, sigma)), Release("clip-bit", 2 * sigma)]
            assert ledger.can_afford(releases)
            ledger.charge(index, releases)
        except (BudgetExhausted, InputError):
            assert ledger.state_dict() == before


@settings(max_examples=80, deadline=None)
@given(budget=st.sampled_from(BUDGETS), actions=st.lists(ACTIONS, max_size=40))
def test_no_sequence_of_actions_passes_the_budget_by_the_filter(
    budget: tuple[float, float, float, int], actions: list[tuple[str, float]]
) -> None:
    ledger = Ledger(*budget)
    play(ledger, actions)
    require_within_budget(ledger)
    assert 0 <= ledger.remaining_share <= 1
    assert accounting.epsilon(ledger.segments(), budget[1], "rdp" if budget[2] < 1 else "gdp") <= budget[0]


@settings(max_examples=8, deadline=None)
@given(budget=st.sampled_from(BUDGETS[:4]), actions=st.lists(ACTIONS, min_size=1, max_size=5))
def test_no_sequence_of_actions_passes_the_budget_by_dp_accounting(
    budget: tuple[float, float, float, int], actions: list[tuple[str, float]]
) -> None:
    epsilon, delta, q, _ = budget
    ledger = Ledger(*budget)
    play(ledger, actions)
    assert ledger.epsilon_by("pld") <= epsilon
    total = privacy_loss_distribution.identity(value_discretization_interval=1e-3)
    for sigma, _, steps in ledger.segments():
        if sigma < 1e4:  # above, the library's grid would be coarser than the loss
            step = privacy_loss_distribution.from_gaussian_mechanism(
                sigma, sampling_prob=q, value_discretization_interval=1e-3
            )
            total = total.compose(step.self_compose(steps))
    assert total.get_epsilon_for_delta(delta) <= epsilon * 1.001 + 0.01  # what so coarse a grid adds


def test_shares_of_one_and_of_almost_nothing_can_be_charged() -> None:
    for budget in BUDGETS:
        for share in (1.0, 0.5, 1e-9, 1e-200, 5e-324):
            ledger = Ledger(*budget)
            sigma = ledger.noise_multiplier_for_share(share)
            assert sigma > 0
            ledger.charge(0, update(sigma))
            assert ledger.remaining_share == pytest.approx(1 - share, abs=1e-4)


def test_shares_are_of_what_remains() -> None:
    ledger = Ledger(8, 1e-5, 0.1, 100)
    ledger.charge(0, update(ledger.noise_multiplier_for_share(0.5)))
    ledger.charge(1, update(ledger.noise_multiplier_for_share(0.5)))
    assert ledger.remaining_share == pytest.approx(0.25, rel=1e-4)
    full = Ledger(4, 1e-5, 1, 100)
    assert full.noise_multiplier_for_share(0.01) == pytest.approx(full.uniform_noise_multiplier, rel=1e-9)


def test_a_larger_share_never_gets_more_noise_and_more_noise_never_costs_more() -> None:
    for budget in BUDGETS:
        ledger = Ledger(*budget)
        sigmas = [ledger.noise_multiplier_for_share(k / 50) for k in range(1, 51)]
        assert sigmas == sorted(sigmas, reverse=True)
        spent = []
        for sigma in sigmas:
            ledger = Ledger(*budget)
            ledger.charge(0, update(sigma))
            spent.append(ledger.epsilon_spent())
        assert spent == sorted(spent)


def test_spent_is_zero_at_first_and_grows() -> None:
    ledger = Ledger(4, 1e-5, 1, 100)
    assert ledger.epsilon_spent() == 0
    assert ledger.epsilon_by("pld") == 0
    assert ledger.remaining_share == 1
    seen = [0.0]
    for index in range(5):
        ledger.charge(index, update(30.0))
        seen.append(ledger.epsilon_spent())
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(accounting.gdp_epsilon(math.sqrt(5) / 30, 1e-5), rel=1e-9)


# --- Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, -math.inf, None, "1", True])
def test_noise_that_is_none_is_refused(value: Any) -> None:
    ledger = Ledger(8, 1e-5, 0.1, 100)
    with pytest.raises(InputError, match="noise_multiplier is"):
        ledger.charge(0, [Release("update", 1.0), Release("clip-bit", value)])
    with pytest.raises(InputError, match="noise_multiplier is"):
        ledger.can_afford(update(value))
    assert ledger.charges == ()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.0000001, math.nan, math.inf, None, True])
def test_shares_out_of_range_are_refused(share: Any) -> None:
    with pytest.raises(InputError, match="share is"):
        Ledger(8, 1e-5, 0.1, 100).noise_multiplier_for_share(share)


def test_rounds_are_charged_once_and_in_order() -> None:
    ledger = Ledger(8, 1e-5, 0.1, 100)
    ledger.charge(3, update(5.0))
    for index in (3, 2, 0):
        with pytest.raises(InputError, match=f"round is {index}, but rounds up to 3 are already charged"):
            ledger.charge(index, update(5.0))
    with pytest.raises(InputError, match="round is -1"):
        ledger.charge(-1, update(5.0))
    ledger.charge(7, update(5.0))
    assert [charge.round for charge in ledger.charges] == [3, 7]


def test_refusal_is_one_sentence_and_changes_nothing() -> None:
    ledger = Ledger(4, 1e-5, 1, 10)
    ledger.charge(0, update(5.0))
    before = ledger.state_dict()
    assert not ledger.can_afford(update(0.5))
    with pytest.raises(
        BudgetExhausted, match=r"Round 1 needs .* of the privacy budget epsilon 4 at delta .*one client"
    ) as caught:
        ledger.charge(1, update(0.5))
    assert str(caught.value).count(". ") == 0
    assert ledger.state_dict() == before
    ledger.charge(1, update(50.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-5, 0.1, 10), "epsilon is 0.0"),
        ((-1.0, 1e-5, 0.1, 10), "epsilon is -1.0"),
        ((math.nan, 1e-5, 0.1, 10), "epsilon is nan"),
        (("8", 1e-5, 0.1, 10), "epsilon is '8'"),
        ((8.0, 0.0, 0.1, 10), "delta is 0.0"),
        ((8.0, 1.0, 0.1, 10), "delta is 1.0"),
        ((8.0, 1e-5, 0.0, 10), "sampling_rate is 0.0"),
        ((8.0, 1e-5, 1.5, 10), "sampling_rate is 1.5"),
        ((8.0, 1e-5, math.nan, 10), "sampling_rate is nan"),
        ((8.0, 1e-5, 0.1, 0), "rounds is 0"),
        ((8.0, 1e-5, 0.1, 1.5), "rounds is 1.5"),
        ((0.01, 1e-12, 0.1, 10), "epsilon is 0.01, but at delta 1e-12 .* needs more than 0.0"),
    ],
)
def test_impossible_ledgers_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ledger(*arguments)


def test_a_round_releases_something_of_a_known_class() -> None:
    ledger = Ledger(8, 1e-5, 0.1, 100)
    with pytest.raises(InputError, match="releases is empty"):
        ledger.charge(0, [])
    with pytest.raises(InputError, match="signal_class 'acounted' is unknown; did you mean accounted"):
        ledger.charge(0, [Release("update", 1.0, "acounted")])


def test_no_limit_asks_for_no_noise_and_promises_nothing() -> None:
    ledger = Ledger(math.inf, 1e-5, 0.1, 100)
    assert ledger.uniform_noise_multiplier == 0
    assert ledger.noise_multiplier_for_share(0.3) == 0
    assert ledger.epsilon_spent() == 0
    ledger.charge(0, update(0.0))
    assert ledger.epsilon_spent() == math.inf
    assert ledger.epsilon_by("pld") == math.inf
    assert ledger.remaining_share == 1
    with pytest.raises(InputError):
        ledger.charge(1, update(-1.0))


# --- What is certified --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_target_is_certified_whatever_was_spent(budget: tuple[float, float, float, int]) -> None:
    ledger = Ledger(*budget)
    assert (ledger.certified, ledger.odometer()) == (0, 0)
    ledger.charge(0, update(3 * ledger.uniform_noise_multiplier))
    assert ledger.certified == budget[0]
    assert ledger.epsilon_spent() < ledger.certified
    assert ledger.odometer() > ledger.epsilon_by("gdp" if budget[2] == 1 else "pld")


def test_replaced_clients_cost_twice_the_noise() -> None:
    half, whole = Ledger(4, 1e-5, 1, 40), Ledger(4, 1e-5, 1, 40, adjacency="replace-one")
    assert whole.uniform_noise_multiplier == pytest.approx(2 * half.uniform_noise_multiplier, rel=1e-12)
    spend_uniformly(whole, 40)
    mu = 2 * math.sqrt(40) / whole.uniform_noise_multiplier
    assert whole.epsilon_by("gdp") == pytest.approx(accounting.gdp_epsilon(mu, 1e-5), rel=1e-9)
    assert 3.999 < whole.epsilon_by("gdp") <= 4
    relations = ORACLE["relations_sigma5_T100_delta1e-5"]
    assert accounting.epsilon([(5.0 / 2, 1.0, 100)], 1e-5) == pytest.approx(
        relations["replace_one_pld(z=s/C)"], rel=1e-5
    )
    with pytest.raises(InputError, match="adjacency is replace-one, for which no amplification is counted"):
        Ledger(4, 1e-5, 0.5, 40, adjacency="replace-one")


PLANS = [(1.0, 0.01, 40, 0.2), (8.0, 0.1, 100, 0.06), (1.0, 0.1, 100, 0.08), (2.0, 0.05, 1000, 0.06)]
"""ε, q, rounds, and the part of σ that planning saves at least against a filter at whole orders."""


@pytest.mark.parametrize(("epsilon", "q", "rounds", "saved"), PLANS)
def test_a_plan_meets_its_target_by_dp_accounting_with_less_noise_than_a_filter(
    epsilon: float, q: float, rounds: int, saved: float
) -> None:
    delta = 1e-5 if q > 0.05 or q == 0.01 else 1e-6
    plan, filtered = (Ledger(epsilon, delta, q, rounds, adaptive=adaptive) for adaptive in (False, True))
    sigma = plan.uniform_noise_multiplier
    whole = min(
        curves.noise_multiplier_for_rdp(q, ((epsilon - rdp_slack(delta, (order,))[0]) / rounds,), (order,))
        for order in range(2, 40)
        if epsilon > rdp_slack(delta, (order,))[0]
    )
    assert sigma * (1 + saved) < whole
    assert sigma < filtered.uniform_noise_multiplier < whole * (1 + 1e-5)
    step = privacy_loss_distribution.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=2e-4)
    assert epsilon * 0.995 < step.self_compose(rounds).get_epsilon_for_delta(delta) < epsilon * 1.002


@pytest.mark.parametrize("q", [0.1, 1.0])
def test_what_leaves_the_plan_is_refused(q: float) -> None:
    ledger = Ledger(2.0, 1e-5, q, 3, adaptive=False)
    sigma = ledger.uniform_noise_multiplier
    for other in (0.999 * sigma, 1.001 * sigma, math.inf):
        with pytest.raises(InputError, match="noise was fixed in advance"):
            ledger.charge(0, update(other))
    with pytest.raises(InputError, match=r"share is 0\.5, but this ledger's noise was fixed in advance"):
        ledger.noise_multiplier_for_share(0.5)
    spent = []
    for index in range(3):
        parts = split_noise_multiplier(sigma, {"update": 0.1 + 0.2 * index, "clip-bit": 0.9 - 0.2 * index})
        ledger.charge(index, [Release(name, part) for name, part in parts.items()])  # the split is free
        spent.append(ledger.epsilon_spent())
    assert spent == sorted(spent)
    assert 1.99 < spent[-1] <= 2.0
    require_within_budget(ledger)
    assert ledger.remaining_share == pytest.approx(0, abs=1e-5)
    with pytest.raises(BudgetExhausted):
        ledger.charge(3, update(sigma))


def test_the_rule_belongs_to_the_state() -> None:
    plan = Ledger(2.0, 1e-5, 0.1, 3, adaptive=False)
    plan.charge(0, update(plan.uniform_noise_multiplier))
    again = Ledger.from_state(json.loads(json.dumps(plan.state_dict())))
    assert (again.adaptive, again.adjacency, again.charges) == (False, "add-remove", plan.charges)
    with pytest.raises(InputError, match="adaptive False, but the run has True"):
        Ledger(2.0, 1e-5, 0.1, 3).load_state_dict(plan.state_dict())
    with pytest.raises(InputError, match="adjacency add-remove, but the run has zero-out"):
        Ledger(2.0, 1e-5, 0.1, 3, adjacency="zero-out", adaptive=False).load_state_dict(plan.state_dict())
    old = {key: value for key, value in plan.state_dict().items() if key not in ("adjacency", "adaptive", "version")}
    with pytest.raises(InputError, match="version 1, from before a ledger named its adjacency"):
        Ledger.from_state(old)


# --- State --------------------------------------------------------------------------------------------------------


def test_a_resumed_ledger_continues_exactly() -> None:
    for budget in [*BUDGETS, (math.inf, 1e-5, 0.1, 10)]:
        whole, first = Ledger(*budget), Ledger(*budget)
        for ledger in (whole, first):
            for index in range(3):
                ledger.charge(index, update(ledger.noise_multiplier_for_share(0.1) or 0.0))
            ledger.charge(5, [Release("update", math.inf), Release("clip-bit", 1e4, "public")])
        second = Ledger(*budget)
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
        for ledger in (whole, second):
            ledger.charge(6, update(ledger.noise_multiplier_for_share(0.37)))
        assert second.state_dict() == whole.state_dict()
        assert second.charges == whole.charges
        assert second.epsilon_spent() == whole.epsilon_spent()
        assert second.remaining_share == whole.remaining_share


@settings(max_examples=40, deadline=None)
@given(
    budget=st.sampled_from(BUDGETS),
    before=st.lists(ACTIONS, max_size=12),
    after=st.lists(ACTIONS, min_size=1, max_size=6),
)
def test_a_ledger_restored_at_any_point_goes_on_as_if_nothing_had_happened(
    budget: tuple[float, float, float, int], before: list[tuple[str, float]], after: list[tuple[str, float]]
) -> None:
    whole = Ledger(*budget)
    play(whole, before)
    text = json.dumps(whole.state_dict(), allow_nan=False)
    restored = [Ledger(*budget), Ledger.from_state(json.loads(text))]
    restored[0].load_state_dict(json.loads(text))
    padding: list[tuple[str, float]] = [("hostile", math.nan)] * len(before)  # refused: only counts the rounds on
    play(whole, padding + after)
    for ledger in restored:
        play(ledger, padding + after)
        assert json.dumps(ledger.state_dict()) == json.dumps(whole.state_dict())
        assert ledger.charges == whole.charges
        assert ledger.epsilon_spent() == whole.epsilon_spent()
        assert ledger.remaining_share == whole.remaining_share


def test_the_digest_of_a_state_is_that_of_its_content() -> None:
    for budget in [*BUDGETS, (math.inf, 1e-5, 0.1, 10)]:
        ledger = Ledger(*budget)
        for _ in range(3):
            state = ledger.state_dict()
            sha256 = state.pop("sha256")
            assert sha256 == digest(state)
            index = len(ledger.charges)
            ledger.charge(index, [Release("é", 1e3, "raw"), Release("clip-bit", math.inf)])


def edits(state: dict[str, Any]) -> list[dict[str, Any]]:
    def edited(change: Any) -> dict[str, Any]:
        other = copy.deepcopy(state)
        change(other)
        return other

    return [
        edited(lambda s: s.update(epsilon=80.0)),
        edited(lambda s: s.update(charges=[])),
        edited(lambda s: s["charges"].pop()),
        edited(lambda s: s["charges"][0][1][0].__setitem__(1, 1e6)),
        edited(lambda s: s["charges"][0].__setitem__(0, 1)),
        edited(lambda s: s.update(extra=1)),
        edited(lambda s: s.update(sha256="0" * 64)),
        edited(lambda s: s.pop("sha256")),
        edited(lambda s: s.pop("charges")),
        edited(lambda s: s.update(delta=math.nan)),
    ]


def test_an_edited_state_is_refused_and_changes_nothing() -> None:
    ledger = Ledger(8, 1e-5, 0.1, 100)
    ledger.charge(0, update(2.0))
    ledger.charge(1, update(3.0))
    target = Ledger(8, 1e-5, 0.1, 100)
    target.charge(0, update(4.0))
    before = target.state_dict()
    for state in [*edits(ledger.state_dict()), {}, None, [1]]:
        with pytest.raises(InputError, match="ledger's state"):
            target.load_state_dict(state)  # type: ignore[arg-type]
        assert target.state_dict() == before
    target.load_state_dict(ledger.state_dict())
    assert target.charges == ledger.charges


def test_a_state_of_another_budget_is_refused() -> None:
    state = Ledger(8, 1e-5, 0.1, 100).state_dict()
    for other in (Ledger(4, 1e-5, 0.1, 100), Ledger(8, 1e-6, 0.1, 100), Ledger(8, 1e-5, 1, 100)):
        with pytest.raises(InputError, match="but the run has"):
            other.load_state_dict(state)


def test_a_forged_digest_does_not_pass_the_budget() -> None:
    content = Ledger(8, 1e-5, 0.1, 100).state_dict()
    del content["sha256"]
    content["charges"] = [[0, [["update", 0.01, "accounted"]]]]
    with pytest.raises(InputError, match="not one that a ledger wrote"):
        Ledger(8, 1e-5, 0.1, 100).load_state_dict({**content, "sha256": digest(content)})


# --- Cost and helpers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [(8.0, 1e-5, 0.1, 1000), (0.02, 1e-5, 0.001, 1000)])
def test_a_charge_costs_less_than_a_millisecond(budget: tuple[float, float, float, int]) -> None:
    ledger = Ledger(*budget)
    sigma = 3 * ledger.uniform_noise_multiplier
    start = time.process_time()
    for index in range(1000):
        ledger.charge(index, update(sigma + index * 1e-3))
    assert time.process_time() - start < 1.0


def test_update_and_bit_together_are_the_rounds_release() -> None:
    sigma, bit_noise = 1.3, 2.5
    update_sigma = update_noise_multiplier(sigma, bit_noise)
    assert update_sigma == pytest.approx((sigma**-2 - (2 * bit_noise) ** -2) ** -0.5, rel=1e-12)
    assert accounting.joint_noise_multiplier([update_sigma, 2 * bit_noise]) == pytest.approx(sigma, rel=1e-12)
    assert update_noise_multiplier(0.0, 1.0) == 0
    assert update_noise_multiplier(1.0, math.inf) == 1.0
    for bad in (0.65, 0.1, 0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="bit_noise is"):
            update_noise_multiplier(1.3, bad)


def test_split_shares_recombine_and_bad_ones_are_refused() -> None:
    parts = split_noise_multiplier(2.0, {"update": 0.6, "bit": 0.3, "loss": 0.1})
    assert accounting.joint_noise_multiplier(parts.values()) == pytest.approx(2.0, rel=1e-12)
    assert parts["update"] == pytest.approx(2.0 / math.sqrt(0.6))
    for bad in ({"a": 0.5, "b": 0.6}, {"a": 1.0, "b": 0.0}, {"a": math.nan}, {"a": 1.5, "b": -0.5}, {}):
        with pytest.raises(InputError, match="share"):
            split_noise_multiplier(2.0, bad)
