"""Rewards against their definitions, and what a diverging run gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from envs import DPilotEnv, DPilotVecEnv
from envs.fleet import Fleet
from envs.rewards import DIVERGENCE_PENALTY, REWARDS
from fl_core.run.plan import RoundReport
from tests.envs.conftest import TINY, make_env, play, random_actions

ACTIONS = random_actions(0, 5, 1)


def test_final_accuracy_comes_at_the_end() -> None:
    for method, figure in (("dp-fedavg", "global_accuracy"), ("fedper", "personal_accuracy")):
        steps = play(make_env(reward="final-accuracy", method=method), ACTIONS)
        rewards = [step[1] for step in steps]
        assert rewards[:-1] == [0.0] * 5
        assert rewards[-1] == pytest.approx(steps[-1][3][figure], abs=1e-6)
        assert 0 < rewards[-1] < 1


@pytest.mark.parametrize("settings", [{}, {"method": "fedper"}, {"decision_rounds": 2}, {"sampling_rate": 0.4}])
def test_advantage_of_the_default_clip_norm_is_zero(settings: dict[str, Any]) -> None:
    env = make_env(reward="advantage", **settings)
    default = env.knobs[0].encode(env.knobs[0].default)
    for seed in (3, 8):
        rewards = [step[1] for step in play(env, np.full((5, 1), default), instance=seed)]
        assert rewards == pytest.approx([0.0] * len(rewards), abs=1e-6)


def test_advantage_is_ten_times_the_gain_over_the_default_clip_norm() -> None:
    advantage, final = make_env(reward="advantage"), make_env(reward="final-accuracy")
    default = final.knobs[0].encode(final.knobs[0].default)
    options = {"epsilon": 40.0, "learning_rate": 0.4}  # the reference plays the same instance
    reference = play(final, np.full((5, 1), default), **options)[-1][1]
    reached = play(final, ACTIONS, **options)[-1][1]
    assert play(advantage, ACTIONS, **options)[-1][1] == pytest.approx(10 * (reached - reference), abs=1e-5)
    assert reached != reference


def test_advantage_charges_accounted_signals_to_the_controller() -> None:
    """The reference pays for no telemetry: same seed, same clip norm, yet not the same accuracy."""
    env, plain = make_env(reward="advantage", signals="accounted"), make_env(reward="advantage")
    assert env.core.references([3]) == pytest.approx(plain.core.references([3]))
    charged = play(env, np.full((5, 1), env.knobs[0].encode(env.knobs[0].default)))[-1][1]
    assert charged != pytest.approx(0.0, abs=1e-6)


def test_a_method_that_spends_its_budget_early_ends_the_run_that_rewards_are_measured_against(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, rounds = Fleet.run_round, []

    def counted(*arguments: Any, **named: Any) -> RoundReport:
        rounds.append(arguments)
        assert len(rounds) < 40, "the reference run never ends"
        return real(*arguments, **named)

    env = make_env(reward="advantage", set="mechanism.budget=printed", rounds=12)
    monkeypatch.setattr(Fleet, "run_round", counted)
    env.reset(options={"instance": 3})
    assert not rounds, "a reset plays no rounds"
    default = env.knobs[0].encode(env.knobs[0].default)
    steps = play(env, np.full((12, 1), default), instance=3)
    assert len(steps) == 1 + 10  # the tenth takes all that is left
    assert len(rounds) == 10 + 10
    play(env, np.full((12, 1), default), instance=3)
    assert len(rounds) == 20 + 10, "the reference of an instance is played once"
    assert steps[-1][1] == pytest.approx(0.0, abs=1e-6)


def test_accuracy_gain_telescopes() -> None:
    env = make_env(reward="accuracy-gain")
    env.reset(options={"instance": 3})
    initial = float(env.core.federation.evaluate()["global_accuracy"][0])
    steps = play(env, ACTIONS)
    assert sum(step[1] for step in steps) == pytest.approx(steps[-1][3]["global_accuracy"] - initial, abs=1e-6)
    assert sum(step[1] != 0 for step in steps) > 1


@pytest.mark.parametrize("decision_rounds", [1, 2])
def test_paper_reward_is_loss_removed_plus_accuracy_gained(decision_rounds: int) -> None:
    env = make_env(reward="paper", decision_rounds=decision_rounds)
    env.reset(options={"instance": 3})
    before = {name: float(value[0]) for name, value in env.core.federation.evaluate().items()}
    for _, reward, _, info in play(env, ACTIONS)[1:]:
        gained = info["trimmed_accuracy"] - before["trimmed_accuracy"]
        removed = before["trimmed_loss"] - info["trimmed_loss"]
        assert reward == pytest.approx(removed + gained, abs=1e-6)
        before = info


def test_every_reward_has_a_summary_and_plain_values() -> None:
    for name, reward in REWARDS.items():
        assert reward.summary
        for _, value, terminated, _ in play(make_env(reward=name, rounds=2), ACTIONS)[1:]:
            assert type(value) is float
            assert type(terminated) is bool
            assert math.isfinite(value)


# ---------------------------------------------------------------- divergence


def diverge(env: Any, at_round: int, row: int = 0) -> None:
    """Let a row's server model stop being finite in a round, once."""
    federation = env.core.federation
    run_round = federation.run_round
    left = [1]

    def run(*args: Any, **kwargs: Any) -> RoundReport:
        report: RoundReport = run_round(*args, **kwargs)
        if not (left and report.ran[row] and federation.rounds[row] == at_round):
            return report
        left.clear()
        federation.server[row] = math.nan
        figures = {name: value.copy() for name, value in report.figures.items()}
        for name in ("server_norm", "release_norm_ratio", "release_alignment"):
            figures[name][row] = math.nan
        return RoundReport(figures, report.ran, report.refused)

    federation.run_round = run


@pytest.mark.parametrize("reward", sorted(REWARDS))
@pytest.mark.parametrize("signals", ["public", "paper"])
def test_divergence_ends_the_episode_with_a_finite_penalty(reward: str, signals: str) -> None:
    env = make_env(reward=reward, signals=signals)
    diverge(env, at_round=2)
    steps = play(env, ACTIONS)
    assert len(steps) == 3
    observation, value, terminated, info = steps[-1]
    assert (value, terminated) == (DIVERGENCE_PENALTY, True)
    assert np.isfinite(observation).all()
    assert not any(math.isnan(one) for one in info.values())
    assert len(play(env, ACTIONS)) == 6  # the next episode is a normal one


def test_divergence_of_a_row_leaves_the_others_alone() -> None:
    plain, broken = (DPilotVecEnv(2, **TINY) for _ in range(2))
    diverge(broken, at_round=3)
    for env in (plain, broken):
        env.seed(5)
        env.reset()
    for t, actions in enumerate(random_actions(2, 5, 2, 1)):
        one, other = plain.step(actions), broken.step(actions)
        np.testing.assert_allclose(other[0][1], one[0][1], atol=1e-6)
        assert other[1][1] == pytest.approx(one[1][1], abs=1e-6)
        assert other[2].tolist() == [t == 2, t == 4]
    assert other[1][0] == 0.0  # row 0 is in its next episode


def test_updates_that_are_not_finite_do_not_end_a_run() -> None:
    env = DPilotEnv(**TINY | {"learning_rate": 1e30, "reward": "final-accuracy"})
    steps = play(env, ACTIONS)
    assert len(steps) == 6
    assert steps[1][3]["rejected_updates"] > 0
    assert not any(math.isnan(value) for step in steps for value in step[3].values())
