"""The kinds of control: with every method that has their knobs, described by themselves, and ended by choice."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envs import DPilotEnv
from envs.knobs import KNOB_GROUPS
from fl_core.base.errors import InputError
from fl_core.recipes.catalog import METHODS
from tests.envs.conftest import PLAIN
from tests.fl_core.privacy.independent import require_within_budget

SMALL: dict[str, Any] = PLAIN | {"clients": 6, "rounds": 2, "evaluation_samples": 50}
NEEDED = {
    "Clip": {"clip_norm"},
    "LayerClip": {"layer_weights"},
    "Budget": {"budget_pace"},
    "Personalize": set(KNOB_GROUPS["personalization"]),
    "Joint": {"server_learning_rate"},
}


def epsilon_of(method: str) -> str | None:
    return None if METHODS[method].private or not METHODS[method].exchanges else "inf"


def make(kind: str, method: str, **settings: Any) -> DPilotEnv:
    env = gym.make(f"DPilot/{kind}-v0", **{**SMALL, "method": method, "epsilon": epsilon_of(method), **settings})
    inner = env.unwrapped
    assert isinstance(inner, DPilotEnv)
    return inner


@pytest.mark.parametrize("method", METHODS)
def test_a_kind_works_with_exactly_the_methods_that_have_its_knobs(method: str) -> None:
    has = {knob.name for knob in METHODS[method].knobs}
    for kind, needed in NEEDED.items():
        if not needed & has:
            with pytest.raises(InputError, match=f"method '{method}'") as caught:
                make(kind, method)
            assert str(caught.value).count(". ") == 0
            continue
        env = make(kind, method)
        names = {knob.name.partition(".")[0] for knob in env.knobs}
        assert names <= has
        if kind == "Joint":
            assert names == has - {"telemetry_share"}
        env.reset(seed=1)
        env.action_space.seed(2)
        _, reward, terminated, _, info = env.step(env.action_space.sample())
        assert np.isfinite(reward)
        assert not terminated
        for knob in env.knobs:
            if knob.name in info:
                assert knob.low <= info[knob.name] <= knob.high * (1 + 1e-6)


def test_joint_sets_the_telemetry_share_where_telemetry_is_seen() -> None:
    names = [knob.name for knob in make("Joint", "dp-fedavg", signals="accounted").knobs]
    assert "telemetry_share" in names


def test_knobs_and_signals_print_as_tables() -> None:
    env = make("Joint", "fedglp-adp", signals="accounted")
    lines = repr(env.knobs).splitlines()
    assert lines[0].split() == ["knob", "range", "scale", "default", "what", "it", "sets"]
    assert [line.split()[0] for line in lines[1:]] == [knob.name for knob in env.knobs]
    assert "0.1 to 8" in lines[1]
    shown = repr(env.signals).splitlines()
    assert shown[0].split()[:3] == ["signal", "class", "scale"]
    assert [line.split()[:2] for line in shown[1:]] == [[one.name, one.signal_class] for one in env.signals]
    assert env.knobs == tuple(env.knobs)
    assert repr(gym.make("DPilot/Clip-v0", knobs="none", **SMALL).unwrapped.knobs) == "(none)"  # type: ignore[attr-defined]


def test_defaults_are_what_the_run_does_by_itself() -> None:
    """beta(sigma) and p = beta/T of FedGLP-ADP depend on noise and length, not on a range."""
    for epsilon, rounds in ((2.0, 10), (20.0, 4)):
        env = make("Personalize", "fedglp-adp", epsilon=epsilon, rounds=rounds)
        rate, limit = (knob.default for knob in env.knobs)
        own = env.core.federation.charging.knob_defaults(0)
        assert (limit, rate) == pytest.approx((own["personal_limit"], own["personal_limit"] / rounds))
    assert limit < 0.3  # less noise than at the reference epsilon


@pytest.mark.parametrize("sampling_rate", [1.0, 0.5])
@pytest.mark.parametrize("rounds", [6, 150])
def test_the_top_of_the_pace_ends_the_run(rounds: int, sampling_rate: float) -> None:
    """All that is left is spent in this round, which ends the episode with its accuracy."""
    env = make("Budget", "dp-fedavg", rounds=rounds, sampling_rate=sampling_rate)
    env.reset(seed=0)
    zero, top = np.zeros(1, dtype=np.float32), np.ones(1, dtype=np.float32)
    *_, terminated, truncated, info = env.step(zero)
    assert info["budget_left"] == pytest.approx(1 - 1 / rounds, rel=1e-3)
    _, reward, terminated, truncated, info = env.step(top)
    assert terminated
    assert not truncated
    assert info["round"] == 2
    assert info["budget_left"] < 1e-4
    assert info["epsilon_spent"] == pytest.approx(7.5, rel=1e-3)
    require_within_budget(env.core.federation.ledgers[0])
    assert reward == pytest.approx(info["global_accuracy"], abs=1e-6)
    assert reward == pytest.approx(float(env.core.federation.evaluate()["global_accuracy"][0]), abs=1e-6)


def test_a_run_ends_within_a_decision_of_several_rounds() -> None:
    env = make("Budget", "dp-fedavg", rounds=8, decision_rounds=4)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(np.ones(1, dtype=np.float32))
    assert terminated
    assert info["round"] == 1
    assert reward > 0
