"""Schedules against their closed forms, at every round."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_core.base.errors import InputError
from policies import (
    BestFixedClip,
    ExponentialDecay,
    FixedClip,
    LinearDecay,
    ServerLearningRateDecay,
    View,
    make_controller,
)
from tests.policies.conftest import clip_of, make_view, observe

DECISIONS = [(40, 1), (40, 4), (10, 4), (5, 3), (1, 1), (3, 8)]


def decision_points(rounds: int, every: int) -> list[tuple[int, float]]:
    """(round, progress) of every decision, written out by counting."""
    starts = [t for t in range(rounds) if t % every == 0]
    return [(t, i / (len(starts) - 1) if len(starts) > 1 else 0.0) for i, t in enumerate(starts)]


@pytest.mark.parametrize(("rounds", "every"), DECISIONS)
def test_fixed_keeps_its_clip_norm(rounds: int, every: int) -> None:
    view = make_view(rounds, every)
    controller = FixedClip.for_env(view, clip_norm=0.5)
    for t, _ in decision_points(rounds, every):
        action, _ = controller.predict(observe(view, t, clip_norm=3.0))
        assert clip_of(action, view.knobs[0]) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(("rounds", "every"), DECISIONS)
@pytest.mark.parametrize(("start", "end"), [(4.0, 0.25), (0.2, 3.0), (8.0, 0.1)])
def test_exponential_decay_is_geometric(rounds: int, every: int, start: float, end: float) -> None:
    view = make_view(rounds, every)
    controller = ExponentialDecay.for_env(view, start=start, end=end)
    for t, progress in decision_points(rounds, every):
        action, _ = controller.predict(observe(view, t))
        expected = math.exp((1 - progress) * math.log(start) + progress * math.log(end))
        assert clip_of(action, view.knobs[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("rounds", "every"), DECISIONS)
@pytest.mark.parametrize(("start", "end"), [(4.0, 0.25), (0.2, 3.0)])
def test_linear_decay_is_linear(rounds: int, every: int, start: float, end: float) -> None:
    view = make_view(rounds, every)
    controller = LinearDecay.for_env(view, start=start, end=end)
    for t, progress in decision_points(rounds, every):
        action, _ = controller.predict(observe(view, t))
        assert clip_of(action, view.knobs[0]) == pytest.approx((1 - progress) * start + progress * end, rel=1e-5)


@pytest.mark.parametrize(("rounds", "every"), DECISIONS)
def test_server_learning_rate_decays_at_fixed_clip(rounds: int, every: int) -> None:
    view = make_view(rounds, every, knobs="clip_norm,server_learning_rate")
    controller = ServerLearningRateDecay.for_env(view, clip_norm=0.7, end=0.1)
    for t, progress in decision_points(rounds, every):
        action, _ = controller.predict(observe(view, t))
        rate = math.exp(math.log(0.05) + (float(action[1]) + 1) / 2 * math.log(40))
        assert clip_of(action, view.knobs[0]) == pytest.approx(0.7, rel=1e-5)
        assert rate == pytest.approx(0.1**progress, rel=1e-5)


@pytest.mark.parametrize(("rounds", "every"), DECISIONS)
@pytest.mark.parametrize(("start", "end"), [(4.0, 0.25), (0.2, 3.0)])
def test_cosine_decay_is_half_a_cosine(rounds: int, every: int, start: float, end: float) -> None:
    view = make_view(rounds, every)
    controller = make_controller(f"cosine-decay:{start}:{end}", view)
    for t, progress in decision_points(rounds, every):
        action, _ = controller.predict(observe(view, t))
        expected = end + (start - end) * math.cos(math.pi * progress / 2) ** 2
        assert clip_of(action, view.knobs[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("rounds", "every"), DECISIONS)
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_step_decay_has_equal_plateaus_and_factors(rounds: int, every: int, steps: int) -> None:
    view = make_view(rounds, every)
    controller = make_controller(f"step-decay:4:0.25:{steps}", view)
    plateaus = [4 * (0.25 / 4) ** (k / steps) for k in range(steps + 1)]
    for t, progress in decision_points(rounds, every):
        action, _ = controller.predict(observe(view, t))
        done = sum(progress >= (k + 1) / (steps + 1) - 1e-9 for k in range(steps))
        assert clip_of(action, view.knobs[0]) == pytest.approx(plateaus[done], rel=1e-5)


@pytest.mark.parametrize(("rounds", "last"), [(40, 10), (5, 3), (5, 1), (3, 8), (1, 1)])
def test_tail_average_weighs_the_last_models_equally(rounds: int, last: int) -> None:
    """Running the weights over unit vectors gives the share of each round's model in what is tested at the end."""
    view = make_view(rounds, knobs="clip_norm,average_weight")
    controller = make_controller(f"tail-average:{last}:0.7", view)
    share = np.zeros(rounds)
    for t in range(rounds):
        action, _ = controller.predict(observe(view, t))
        assert clip_of(action, view.knobs[0]) == pytest.approx(0.7, rel=1e-5)
        weight = float(view.knobs[1].decode(action[1:].astype(float))[0])
        share = (1 - weight) * share + weight * (np.arange(rounds) == t)
    tail = min(last, rounds)
    expected = np.where(np.arange(rounds) >= rounds - tail, 1 / tail, 0.0)
    np.testing.assert_allclose(share, expected, atol=1e-5)


def test_tail_average_refuses_decisions_of_several_rounds() -> None:
    with pytest.raises(InputError, match="weighs every round, but decision_rounds is 4"):
        make_controller("tail-average", make_view(40, 4, knobs="clip_norm,average_weight"))


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_client_budget_sets_its_strength(kappa: float) -> None:
    view = make_view(knobs="client_budget_strength")
    controller = make_controller(f"client-budget:{kappa}", view)
    for t in (0, 7, 39):
        action, _ = controller.predict(observe(view, t))
        assert float(action[0]) == pytest.approx(kappa - 1, abs=1e-6)  # the knob goes from 0 to 2


def test_decays_reach_both_ends_with_single_rounds(public: View) -> None:
    for kind in (ExponentialDecay, LinearDecay):
        controller = kind.for_env(public, start=2.0, end=0.5)
        first, last = (controller.predict(observe(public, t))[0] for t in (0, 39))
        assert clip_of(first, public.knobs[0]) == pytest.approx(2.0, rel=1e-6)
        assert clip_of(last, public.knobs[0]) == pytest.approx(0.5, rel=1e-6)


def test_end_above_start_is_allowed(public: View) -> None:
    controller = ExponentialDecay.for_env(public, start=0.5, end=2.0)
    clips = [clip_of(controller.predict(observe(public, t))[0], public.knobs[0]) for t in range(40)]
    assert np.all(np.diff(clips) > 0)


def test_anchor_gives_the_ends_within_the_range(public: View, both_knobs: View) -> None:
    assert ExponentialDecay.for_env(public, anchor=0.8).values == {"start": 1.6, "end": 0.4}
    assert LinearDecay.for_env(public, anchor=0.8).values == {"start": 1.6, "end": 0.4}
    assert ExponentialDecay.for_env(public, anchor=6.0).values == {"start": 8.0, "end": 3.0}
    assert ExponentialDecay.for_env(public, anchor=0.15).values == {"start": 0.3, "end": 0.1}
    assert ServerLearningRateDecay.for_env(both_knobs, anchor=0.8).values == {"clip_norm": 1.6, "end": 0.25}
    assert BestFixedClip.for_env(public, anchor=0.8).values == {"clip_norm": 0.8}


def test_without_anchor_the_default_clip_norm_serves(public: View, both_knobs: View) -> None:
    default = public.knobs[0].default
    assert ExponentialDecay.for_env(public).values == {"start": 2 * default, "end": default / 2}
    assert ServerLearningRateDecay.for_env(both_knobs).values == {"clip_norm": 2 * default, "end": 0.25}
    assert FixedClip.for_env(public).values == FixedClip.for_env(public, anchor=0.3).values == {"clip_norm": default}


def test_best_fixed_needs_a_search(public: View) -> None:
    with pytest.raises(InputError, match="needs a tuned clip norm"):
        BestFixedClip.for_env(public)


def test_knobs_that_a_controller_does_not_set_keep_their_default(both_knobs: View) -> None:
    action, _ = FixedClip.for_env(both_knobs, clip_norm=2.0).predict(observe(both_knobs, 3))
    assert both_knobs.knobs[1].decode(action[1:].astype(float)) == pytest.approx(1.0)


@pytest.mark.parametrize("clip", [0.05, 9.0])
def test_clip_norm_outside_the_task_is_refused(public: View, clip: float) -> None:
    with pytest.raises(InputError, match=r"clip_norm is .*, but this task allows 0.1 to 8"):
        FixedClip.for_env(public, clip_norm=clip)
    with pytest.raises(InputError, match="this task allows"):
        ExponentialDecay.for_env(public, start=1.0, end=clip)
    with pytest.raises(InputError, match="this task allows"):
        ExponentialDecay.for_env(public, anchor=clip)


def test_server_learning_rate_outside_the_knob_is_refused(both_knobs: View) -> None:
    with pytest.raises(InputError, match=r"server_learning_rate is 0\.01, but this task allows"):
        ServerLearningRateDecay.for_env(both_knobs, clip_norm=1.0, end=0.01)


def test_missing_knob_is_named(public: View) -> None:
    with pytest.raises(InputError, match="'server-lr-decay' sets the knob 'server_learning_rate'"):
        ServerLearningRateDecay.for_env(public)


def test_unknown_parameter_is_refused_with_near_names(public: View) -> None:
    with pytest.raises(InputError, match="did you mean start"):
        ExponentialDecay.for_env(public, strt=2.0)
