"""Adaptive clipping: its formula, and that it finds the quantile from above and from below."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest

import envs  # noqa: F401  (registers the environments)
from fl_core.base.errors import InputError
from policies import AdaptiveQuantileClip, View
from policies.adaptive_quantile import ExactQuantileClip
from tests.policies.conftest import clip_of, make_view, observe


@pytest.mark.parametrize("every", [1, 4])
def test_update_is_that_of_the_paper(every: int) -> None:
    view = make_view(40, every, signals="accounted")
    controller = AdaptiveQuantileClip.for_env(view, quantile=0.3, rate=0.5, start=2.0)
    first, _ = controller.predict(observe(view, 0, clip_norm=1.0, unclipped=0.5))
    assert clip_of(first, view.knobs[0]) == pytest.approx(2.0, rel=1e-6)
    for t in range(every, 40, every):
        for clip, share in [(1.0, 0.9), (3.0, 0.3), (0.5, 0.0), (0.5, -0.2), (2.0, 1.3)]:
            action, _ = controller.predict(observe(view, t, clip, share))
            assert clip_of(action, view.knobs[0]) == pytest.approx(clip * math.exp(-0.5 * (share - 0.3)), rel=1e-5)


def test_defaults(accounted: View) -> None:
    assert AdaptiveQuantileClip.for_env(accounted, anchor=0.3).values == {"quantile": 0.5, "rate": 0.2, "start": 1.0}


def test_clip_stays_within_the_range(accounted: View) -> None:
    controller = AdaptiveQuantileClip.for_env(accounted, rate=10.0)
    knob = accounted.knobs[0]
    for share, bound in [(1.5, knob.low), (-0.5, knob.high)]:
        action, _ = controller.predict(observe(accounted, 5, 1.0, share))
        assert clip_of(action, knob) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("start", [0.1, 8.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_finds_the_quantile_from_both_sides(quantile: float, start: float, noise: float) -> None:
    """A population of norms spread over two orders of magnitude; the bit's noise as with 50 clients and more."""
    view = make_view(400, signals="accounted")
    controller = AdaptiveQuantileClip.for_env(view, quantile=quantile, start=start)
    random = np.random.default_rng(7)
    norms = np.exp(random.normal(math.log(0.9), 0.5, 2000))
    observation, clips = observe(view, 0), []
    for t in range(400):
        action, _ = controller.predict(observation)
        clip = clip_of(action, view.knobs[0])
        clips.append(clip)
        share = float(np.mean(norms <= clip)) + noise * random.normal()
        observation = observe(view, min(t + 1, 399), clip, share)
    found = [float(np.mean(norms <= clip)) for clip in clips]
    assert abs(found[0] - quantile) > 0.15
    assert np.mean(found[-100:]) == pytest.approx(quantile, abs=0.02)
    assert np.std(found[-100:]) < (0.05 if noise else 1e-3)


@pytest.mark.parametrize("start", [0.2, 8.0])
def test_finds_the_quantile_in_a_federated_run(start: float) -> None:
    env = gym.make(
        "DPilot/Clip-v0",
        task="digits",
        signals="accounted",
        reward="final-accuracy",
        rounds=25,
        local_steps=2,
        epsilon=400.0,
        executor="vectorized",
    )
    controller = AdaptiveQuantileClip.for_env(env, rate=0.6, start=start)
    observation, _ = env.reset(seed=11)
    shares, ended = [], False
    while not ended:
        action, _ = controller.predict(observation)
        observation, _, ended, _, info = env.step(action)
        shares.append(1 - info["clipped_share"])
    assert shares[0] in (0.0, 1.0)
    assert np.mean(shares[-8:]) == pytest.approx(0.5, abs=0.2)


def test_public_signals_are_not_enough(public: View) -> None:
    with pytest.raises(InputError, match=r"reads the signal 'unclipped_share_noised'.*signals='accounted'"):
        AdaptiveQuantileClip.for_env(public)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_exact_rule_takes_the_same_step_from_the_exact_share(share: float) -> None:
    paid, exact = make_view(40, signals="accounted"), make_view(40, signals="paper")
    noised = AdaptiveQuantileClip.for_env(paid)
    unpaid = ExactQuantileClip.for_env(exact)
    observation = np.array(observe(exact, 5, 2.0))
    observation[exact.column("clipped_share")] = 2 * (1 - share) - 1
    clips = [
        clip_of(noised.predict(observe(paid, 5, 2.0, share))[0], paid.knobs[0]),
        clip_of(unpaid.predict(observation)[0], exact.knobs[0]),
    ]
    assert clips[0] == pytest.approx(clips[1], rel=1e-6)
    assert clips[0] == pytest.approx(2 * math.exp(-0.2 * (share - 0.5)), rel=1e-5)
