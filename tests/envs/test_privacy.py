"""No sequence of actions overspends the budget, by the ledger and by dp-accounting's PLD."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envs import DPilotEnv
from fl_core.privacy.releases import Release
from tests.envs.conftest import PLAIN
from tests.fl_core.privacy.independent import require_within_budget

ROUNDS = 3
CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"sampling_rate": 0.3},
    {"sampling_rate": 0.3, "sampling": "fixed"},
    {"sampling_rate": 0.3, "placement": "local", "signals": "accounted"},
    {"sampling_rate": 0.3, "placement": "distributed", "signals": "accounted"},
    {"placement": "local"},
    {"placement": "distributed", "signals": "paper"},
    {"signals": "accounted", "telemetry_share": 0.6, "decision_rounds": 2},
)


@functools.lru_cache
def environment(index: int) -> DPilotEnv:
    knobs = "clip_norm,server_learning_rate"
    return DPilotEnv(**PLAIN | {"rounds": ROUNDS}, knobs=knobs, **CONFIGURATIONS[index])


def epsilon_by_pld(env: DPilotEnv) -> float:
    """From the rounds' charges, with dp-accounting alone; amplified only where the server does not see who came."""
    config = env.core.federation.config
    amplified = config.sampling == "poisson" and config.placement != "local" and config.sampling_rate < 1
    charges = env.core.federation.ledgers[0].charges
    joint = [sum(release.noise_multiplier**-2 for release in charge.releases) ** -0.5 for charge in charges]
    return pld(tuple(sorted(Counter(joint).items())), config.sampling_rate if amplified else 1.0, config.delta)


@functools.lru_cache
def pld(steps: tuple[tuple[float, int], ...], sampling_rate: float, delta: float) -> float:
    """Epsilon of Gaussian releases (noise multiplier, count); its losses are rounded up to a grid of 1e-4."""
    accountant = PLDAccountant()
    for joint, count in steps:
        event = dp_event.GaussianDpEvent(joint)
        accountant.compose(dp_event.PoissonSampledDpEvent(sampling_rate, event) if sampling_rate < 1 else event, count)
    return float(accountant.get_epsilon(delta))


numbers = st.one_of(
    st.sampled_from([1.0, -1.0, 1e38, -1e308]), st.floats(-1, 1), st.floats(allow_nan=False, allow_infinity=False)
)
hostile = st.lists(st.tuples(numbers, numbers), min_size=2 * ROUNDS, max_size=2 * ROUNDS)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    index=st.integers(0, len(CONFIGURATIONS) - 1),
    actions=hostile,
    epsilon=st.sampled_from([0.3, 2.0, 7.5]),
    seed=st.integers(0, 5),
)
def test_no_actions_overspend(index: int, actions: list[tuple[float, float]], epsilon: float, seed: int) -> None:
    env = environment(index)
    core = env.core
    env.reset(seed=seed, options={"epsilon": epsilon})
    for action in actions:  # goes on after the end, where nothing may happen any more
        core.step(np.array([action], dtype=np.float64))
    ledger = core.federation.ledgers[0]
    assert core.finished.all()
    assert len(ledger.charges) == len(core.history[0]) == ROUNDS
    require_within_budget(ledger)
    assert ledger.epsilon_by("pld") <= epsilon * (1 + 1e-9)
    assert epsilon_by_pld(env) <= epsilon * (1 + 1e-6)  # the grid's rounding, seen where the budget is used to the end
    for charge, figures in zip(ledger.charges, core.history[0], strict=True):
        assert figures["noise_multiplier"] == charge.releases[0].noise_multiplier  # what was charged is what was added
        assert figures["epsilon_spent"] <= epsilon


@pytest.mark.parametrize("index", range(len(CONFIGURATIONS)))
def test_the_budget_is_used(index: int) -> None:
    """The other side: nothing of the filter's budget is left over, and at q = 1 PLD finds nothing either."""
    env = environment(index)
    env.reset(seed=0)
    while not env.core.finished[0]:
        env.core.step(np.zeros((1, 2)))
    assert env.core.federation.ledgers[0].remaining_share < 1e-4
    assert epsilon_by_pld(env) > (7.5 * 0.999 if env.core.federation.config.accounting_rate == 1 else 5.0)


def test_a_refused_round_ends_the_episode_untouched() -> None:
    """As a controller of the budget may bring about: the ledger is asked before any data is touched."""
    env = DPilotEnv(**PLAIN, noise_schedule="adaptive")
    env.reset(seed=0)
    env.step(np.zeros(1, dtype=np.float32))
    ledger = env.core.federation.ledgers[0]
    joint = ledger.noise_multiplier_for_share(1.0)
    ledger.charge(1, [Release("elsewhere", joint)])
    before = env.core.federation.server.clone()
    env.core.federation.rounds[0] = 2
    observation, reward, terminated, truncated, info = env.step(np.zeros(1, dtype=np.float32))
    assert (terminated, truncated) == (True, False)
    assert bool((env.core.federation.server == before).all())
    assert reward == pytest.approx(info["global_accuracy"])
    assert info["round"] == 2
    assert env.observation_space.contains(observation)
