"""Signals: what each set shows, within which bounds, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs import DPilotEnv
from envs.setting import ACCOUNTED_TELEMETRY_SHARE
from envs.signals import FEATURE_BOUND
from fl_core.run.plan import METRICS, RoundReport
from tests.envs.conftest import make_env, play, random_actions
from tests.fl_core.privacy.independent import require_within_budget

SETS = {"public": {"public"}, "accounted": {"public", "accounted"}, "paper": {"public", "raw"}}


def observations(env: DPilotEnv, actions: Any, **options: Any) -> NDArray[np.float32]:
    return np.stack([step[0] for step in play(env, actions, **options)])


@pytest.mark.parametrize("signals", SETS)
def test_features_are_named_and_of_an_allowed_class(signals: str) -> None:
    env = make_env(signals=signals)
    names = [feature.name for feature in env.signals]
    assert len(set(names)) == len(names) == env.observation_space.shape[0]  # type: ignore[index]
    assert {feature.signal_class for feature in env.signals} == SETS[signals]
    for feature in env.signals:
        assert feature.summary
        if feature.figure in METRICS:
            assert feature.signal_class == METRICS[feature.figure].signal_class


@pytest.mark.parametrize("signals", SETS)
@pytest.mark.parametrize("settings", [{}, {"sampling_rate": 0.02}, {"decision_rounds": 2}, {"learning_rate": 1e6}])
def test_observations_stay_within_bounds(signals: str, settings: dict[str, Any]) -> None:
    env = make_env(signals=signals, **settings)
    extremes = np.array([[-1.0], [1.0], [-1e38], [1e38], [0.3]])
    for epsilon in (0.05, 7.5, math.inf):
        seen = observations(env, extremes, epsilon=epsilon)
        assert seen.dtype == np.float32
        assert np.isfinite(seen).all()
        assert np.abs(seen).max() <= FEATURE_BOUND
        assert all(env.observation_space.contains(one) for one in seen)


def test_features_are_scaled_as_they_say() -> None:
    env = make_env(signals="paper")
    steps = play(env, random_actions(0, 5, 1))
    names = [feature.name for feature in env.signals]
    for done, (observation, _, _, info) in enumerate(steps):
        shown = dict(zip(names, observation.tolist(), strict=True))
        assert shown["round_fraction"] == pytest.approx(2 * done / 5 - 1)
        assert shown["budget_left"] == pytest.approx(1 - 2 * done / 5, abs=1e-4)
        if done:
            assert shown["noise_level"] == pytest.approx(math.log10(info["noise_multiplier"]) / 2, abs=1e-6)
            assert shown["release_norm_ratio"] == pytest.approx(math.log(info["release_norm_ratio"]), abs=1e-5)
            assert shown["release_alignment"] == pytest.approx(info["release_alignment"], abs=1e-5)
            assert shown["trimmed_accuracy"] == pytest.approx(2 * info["trimmed_accuracy"] - 1, abs=1e-5)
            assert shown["trimmed_loss"] == pytest.approx(info["trimmed_loss"] / math.log(10) - 1, abs=1e-5)


def test_noised_share_is_shown_around_the_exact_one() -> None:
    env = make_env(signals="accounted")
    column = [feature.name for feature in env.signals].index("unclipped_share_noised")
    # epsilon 1000: the bit's noise is small against 50 clients
    for observation, _, _, info in play(env, [[-1.0], [1.0], [-1.0], [1.0], [0.3]], epsilon=1000.0)[1:]:
        assert (observation[column] + 1) / 2 == pytest.approx(1 - info["clipped_share"], abs=0.1)


def test_features_average_over_the_rounds_of_a_decision() -> None:
    fine, coarse = make_env(rounds=4), make_env(rounds=4, decision_rounds=2)
    column = [feature.name for feature in fine.signals].index("release_alignment")
    fine_steps, coarse_steps = play(fine, np.zeros((4, 1))), play(coarse, np.zeros((2, 1)))
    assert [step[3]["round"] for step in coarse_steps] == [0, 2, 4]
    for decision in (1, 2):
        expected = np.mean([fine_steps[2 * decision - back][0][column] for back in (0, 1)])
        assert coarse_steps[decision][0][column] == pytest.approx(expected, abs=1e-5)
    assert coarse_steps[-1][3]["server_norm"] == pytest.approx(fine_steps[-1][3]["server_norm"], rel=1e-6)


# ---------------------------------------------------------------- privacy classes


def perturb(env: DPilotEnv, classes: set[str], change: Callable[[Any], Any]) -> None:
    """Change every figure of some classes on its way from the federation to the environment."""
    federation = env.core.federation
    run_round, evaluate = federation.run_round, federation.evaluate

    def changed(figures: Any) -> dict[str, Any]:
        return {
            name: change(value) if METRICS[name].signal_class in classes else value for name, value in figures.items()
        }

    def run(*args: Any, **kwargs: Any) -> RoundReport:
        report = run_round(*args, **kwargs)
        return RoundReport(changed(report.figures), report.ran, report.refused)

    federation.run_round = run  # type: ignore[method-assign]
    federation.evaluate = lambda: changed(evaluate())  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("signals", "classes"),
    [("public", {"raw", "accounted"}), ("accounted", {"raw"}), ("paper", {"accounted"})],
)
@pytest.mark.parametrize("change", [lambda value: 0.37 - 3 * value, lambda value: np.full_like(value, np.nan)])
def test_figures_of_other_classes_leave_no_trace(signals: str, classes: set[str], change: Callable[[Any], Any]) -> None:
    actions = random_actions(5, 5, 1)
    settings = {"signals": signals, "telemetry_share": 0.2, "reward": "paper"}
    plain, perturbed = make_env(**settings), make_env(**settings)
    perturb(perturbed, classes, change)
    np.testing.assert_array_equal(observations(perturbed, actions), observations(plain, actions))


@pytest.mark.parametrize(("signals", "classes"), [("accounted", {"accounted"}), ("paper", {"raw"})])
def test_figures_of_the_own_class_do_leave_one(signals: str, classes: set[str]) -> None:
    """The control of the test above."""
    actions = random_actions(5, 5, 1)
    plain, perturbed = make_env(signals=signals), make_env(signals=signals)
    perturb(perturbed, classes, lambda value: 0.37 - 3 * value)
    assert not np.array_equal(observations(perturbed, actions), observations(plain, actions))


@pytest.mark.parametrize("sampling_rate", [1.0, 0.4])
def test_accounted_signals_are_paid_for(sampling_rate: float) -> None:
    public = make_env(sampling_rate=sampling_rate)
    accounted = make_env(sampling_rate=sampling_rate, signals="accounted")
    one, other = play(public, np.zeros((5, 1))), play(accounted, np.zeros((5, 1)))
    paid = 1 / math.sqrt(1 - ACCOUNTED_TELEMETRY_SHARE)
    for (*_, plain_info), (*_, info) in zip(one[1:], other[1:], strict=True):
        assert info["noise_multiplier"] == pytest.approx(plain_info["noise_multiplier"] * paid, rel=1e-6)
        assert info["epsilon_spent"] == pytest.approx(plain_info["epsilon_spent"], rel=1e-6)
    for env in (public, accounted):
        require_within_budget(env.core.federation.ledgers[0])
    names = [[release.name for release in charge.releases] for charge in accounted.core.federation.ledgers[0].charges]
    assert names == [["update", "clip-bit"]] * 5
    assert "unclipped_share_noised" not in one[-1][3]


def test_a_task_may_set_the_price_of_its_telemetry() -> None:
    env = make_env(signals="accounted", telemetry_share=0.5)
    free = make_env()
    dear, plain = play(env, np.zeros((5, 1)))[1][3], play(free, np.zeros((5, 1)))[1][3]
    assert dear["noise_multiplier"] == pytest.approx(plain["noise_multiplier"] * math.sqrt(2), rel=1e-6)
