"""No control of budget and telemetry overspends, whatever is asked for; what is refused leaves nothing behind."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs.knobs import make_knobs, plan_values
from envs.tasks import find_task
from fl_core.run.charging import Charging
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.plain import StubTraining, config, plan, same_state, snapshot
from tests.fl_core.privacy.independent import require_within_budget

torch.set_num_threads(1)
KNOBS = "budget_pace,telemetry_share,clip_norm"
COORDINATES = st.one_of(st.floats(-3, 3), st.sampled_from([math.inf, -math.inf, -1.0, 1.0, 1e300]))
ACTIONS = st.lists(st.tuples(COORDINATES, COORDINATES, COORDINATES), min_size=1, max_size=25)


@settings(max_examples=30, deadline=None)
@given(
    actions=ACTIONS,
    rate=st.one_of(st.just(1.0), st.floats(1e-3, 1)),
    epsilon=st.floats(0.5, 40),
    rounds=st.integers(1, 30),
    telemetry=st.sampled_from([0.0, 0.1, 0.7]),
)
def test_no_sequence_of_actions_overspends_at_any_sampling_rate(
    actions: list[tuple[float, float, float]], rate: float, epsilon: float, rounds: int, telemetry: float
) -> None:
    """By the filter's own bound, whatever was seen; and, played as a schedule fixed in advance, by PLD or Rényi DP."""
    made = replace(config(), epsilon=epsilon, sampling_rate=rate, rounds=rounds, telemetry_share=telemetry)
    recipe = made.recipe()
    charging = Charging(made, recipe, [Charging.prepare(made, recipe, epsilon)])
    knobs = make_knobs(find_task("digits"), KNOBS, recipe.knobs)
    done = 0
    for action in actions:
        values = [knob.decode(np.array([one])) for knob, one in zip(knobs, action, strict=True)]
        asked = RoundPlan.from_values(1, plan_values(knobs, values))
        asked.check(1, recipe.knobs)
        before = charging.ledgers[0].state_dict()
        noise, refused = charging.charge(asked, np.array([True]), np.array([done]), lambda row: 1.0)
        if refused[0]:
            assert charging.ledgers[0].state_dict() == before
            assert not any(values.any() for values in noise.values())
        done += not refused[0]
    (ledger,) = charging.ledgers
    assert len(ledger.charges) == done
    require_within_budget(ledger)
    assert ledger.epsilon_of_noise() <= epsilon
    for charge in ledger.charges:
        joint = math.fsum(release.noise_multiplier**-2 for release in charge.releases)
        assert joint == pytest.approx(charge.noise_multiplier**-2, rel=1e-9)


@settings(max_examples=5, deadline=None)
@given(actions=st.lists(st.tuples(COORDINATES, COORDINATES, COORDINATES), min_size=1, max_size=4))
def test_a_schedule_fixed_in_advance_stays_within_its_budget_by_pld(actions: list[tuple[float, float, float]]) -> None:
    made = replace(config(), epsilon=3.0, sampling_rate=0.2, rounds=4)
    recipe = made.recipe()
    charging = Charging(made, recipe, [Charging.prepare(made, recipe, 3.0)])
    knobs = make_knobs(find_task("digits"), KNOBS, recipe.knobs)
    for index, action in enumerate(actions):
        values = [knob.decode(np.array([one])) for knob, one in zip(knobs, action, strict=True)]
        asked = RoundPlan.from_values(1, plan_values(knobs, values))
        charging.charge(asked, np.array([True]), np.array([index]), lambda row: 1.0)
    require_within_budget(charging.ledgers[0])
    assert charging.ledgers[0].epsilon_by("pld") <= 3.0


@pytest.fixture(scope="module", params=[1.0, 0.3])
def spent(request: pytest.FixtureRequest) -> Federation:
    federation = Federation(config(rounds=12, sampling_rate=request.param, telemetry_share=0.1))
    StubTraining(federation, change=1.0)
    federation.run_round(plan(shares=np.array([1.0])))
    return federation


def global_streams() -> tuple[bytes, str, object]:
    """State of every generator that nobody passes around; the runs' own are functions of seed and round."""
    legacy = repr(np.random.get_state())  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), legacy, random.getstate()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=st.tuples(COORDINATES, COORDINATES, COORDINATES))
def test_a_refused_round_leaves_state_ledger_and_random_streams_untouched(
    spent: Federation, action: tuple[float, float, float]
) -> None:
    knobs = make_knobs(find_task("digits"), KNOBS, spent.recipe.knobs)
    values = [knob.decode(np.array([one])) for knob, one in zip(knobs, action, strict=True)]
    before, streams = snapshot(spent), global_streams()
    report = spent.run_round(RoundPlan.from_values(1, plan_values(knobs, values)))
    assert report.refused.tolist() == [True]
    assert same_state(before, snapshot(spent))
    assert global_streams() == streams
