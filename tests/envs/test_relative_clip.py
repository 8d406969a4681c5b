"""Clip norms relative to the last one and to the scale of what is released."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from envs import EnvCore, make_core
from envs.playing import run_to_the_end
from envs.relative_clip import AGREEMENT, BEYOND, CALIBRATED, ClipReference
from envs.tasks import find_task
from fl_core.base.errors import InputError
from fl_core.run.calibration import calibrated_norm
from fl_core.run.config import RunSettings
from fl_core.run.plan import RoundReport
from policies import make_controller
from tests.envs.conftest import PLAIN, make_env

SMALL: dict[str, Any] = PLAIN | {"clients": 8}


def reset_core(runs: int, **settings: Any) -> EnvCore:
    core = make_core(runs, **{**SMALL, **settings})
    core.reset(range(runs), [RunSettings(seed=5 + row) for row in range(runs)])
    return core


def test_a_change_multiplies_the_last_clip_norm_within_the_tasks_range() -> None:
    env = make_env(**SMALL | {"knobs": "clip_change", "rounds": 12})
    env.reset(seed=0)
    clip = 1.0
    factors = [2.0, 0.7, 2.0, 2.0, 2.0, 2.0, 0.5, 1.0, 1.5]
    for factor in factors:
        *_, info = env.step(np.array([math.log2(factor)], dtype=np.float32))
        clip = min(8.0, max(0.1, clip * factor))
        assert info["clip_norm"] == pytest.approx(clip, rel=1e-5)
    assert clip == pytest.approx(6.0)  # it has saturated at 8 and forgotten what lay beyond


def test_multiples_of_the_calibrated_norm_follow_each_runs_own_settings() -> None:
    core = make_core(2, **SMALL | {"knobs": CALIBRATED})
    runs = [RunSettings(seed=5), RunSettings(seed=6, learning_rate=0.05)]
    core.reset([0, 1], runs)
    norms = [calibrated_norm(core.federation.config, one) for one in runs]
    assert norms[0] > 4 * norms[1]
    run_to_the_end(core, make_controller("exponential-decay:2x:0.5x", core), runs, lambda done: None)
    for row, norm in enumerate(norms):
        clips = [step["clip_norm"] for step in core.history[row]]
        assert (clips[0], clips[-1]) == pytest.approx((2 * norm, norm / 2), rel=1e-5)
        assert core.controls.calibrated_norm(row) == norm
    assert reset_core(1).controls.calibrated_norm(0) is None


def test_a_change_is_made_once_per_decision_and_a_reset_forgets_it() -> None:
    core = reset_core(1, knobs="clip_change", decision_rounds=2)
    core.step(np.array([[1.0]]))
    core.step(np.array([[1.0]]))
    assert [step["clip_norm"] for step in core.history[0]] == pytest.approx([2, 2, 4, 4])
    core.reset([0], [RunSettings(seed=1)])
    core.step(np.array([[-1.0]]))
    assert core.history[0][0]["clip_norm"] == pytest.approx(0.5)


def test_the_scale_is_the_documented_filter_of_released_norms() -> None:
    core = reset_core(2, knobs="clip_scale", epsilon=40.0)
    factors = np.array([[2.0, 1.0, 0.3, 1.0, 5.0], [1.0] * 5])
    for column in factors.T:
        core.step(np.log(column)[:, None] / math.log(10))
    size = core.federation.model.size
    for row in range(2):
        power, variance = 0.25**2, 0.25**4
        for factor, step in zip(factors[row], core.history[row], strict=True):
            assert step["clip_norm"] == pytest.approx(factor * math.sqrt(power) / 0.25, rel=1e-4)
            released, noise = step["release_norm"], step["release_noise"]
            expected = step["clip_norm"] * step["noise_multiplier"] * math.sqrt(size) / 8
            assert noise == pytest.approx(expected, rel=1e-4)
            seen = released**2 - noise**2
            gain = variance / (variance + (2 * noise**4 + 4 * power * noise**2) / size)
            variance *= 1 - gain
            power = min(max(power + gain * (seen - power), power / 4), power * 4)
            variance += 0.05 * power**2


@pytest.mark.parametrize("norm", [0.02, 0.1, 1.0, 5.0, 25.0])
def test_one_factor_finds_the_same_clip_relative_to_updates_of_any_scale(norm: float) -> None:
    """Clients whose updates agree by half: mean norm 0.5·min(norm, C), released with the noise of many clients."""
    reference = ClipReference(find_task("digits"), 1)
    reference.reset([0], [2000])
    random = np.random.default_rng(1)
    relative = []
    for _ in range(60):
        clip = float(reference.resolve({"clip_scale": np.array([1.0])})["clip_norm"][0])
        relative.append(clip / norm)
        std = clip * 4 / 1000  # sigma 4 and 1,000 clients
        released = std * random.normal(size=2000)
        released[0] += 0.5 * min(norm, clip)
        figures = {
            "release_norm": np.array([np.linalg.norm(released)]),
            "release_noise": np.array([std * math.sqrt(2000)]),
        }
        reference.observe(RoundReport(figures, np.array([True]), np.array([False])))
    assert np.mean(relative[-20:]) == pytest.approx(2.0, rel=0.05)  # 0.5/AGREEMENT


def test_without_noise_the_scale_follows_at_once() -> None:
    core = reset_core(1, knobs="clip_scale", epsilon=math.inf)
    for _ in range(4):
        core.step(np.zeros((1, 1)))
    steps = core.history[0]
    for before, after in itertools.pairwise(steps):
        bounded = np.clip(4 * before["release_norm"], before["clip_norm"] / 2, before["clip_norm"] * 2)
        assert after["clip_norm"] == pytest.approx(float(bounded), rel=1e-4)


@pytest.mark.parametrize(("released", "bound"), [(0.0, 0.1 / BEYOND), (1e30, 8.0 * BEYOND), (math.nan, 1.0)])
def test_releases_of_any_length_leave_a_scale_that_can_move_again(released: float, bound: float) -> None:
    reference = ClipReference(find_task("digits"), 1)

    def observe(norm: float) -> None:
        figures = {"release_norm": np.array([norm]), "release_noise": np.zeros(1)}
        reference.observe(RoundReport(figures, np.ones(1, dtype=bool), np.zeros(1, dtype=bool)))

    for _ in range(600):
        observe(released)
    assert reference.scale == pytest.approx(bound)
    for _ in range(40):
        observe(AGREEMENT * 3.0)
    assert reference.scale == pytest.approx(3.0)


@pytest.mark.parametrize("knob", ["clip_change", "clip_scale"])
def test_rows_equal_single_runs_and_saved_ones_continue(knob: str) -> None:
    actions = np.random.default_rng(2).uniform(-1, 1, (5, 2, 1))
    both = reset_core(2, knobs=knob, sampling_rate=0.5)
    single = make_core(1, **{**SMALL, "knobs": knob, "sampling_rate": 0.5})
    single.reset([0], [RunSettings(seed=6)])
    resumed: EnvCore | None = None
    for index, action in enumerate(actions):
        both.step(action)
        single.step(action[1:])
        if index == 2:
            resumed = make_core(2, **{**SMALL, "knobs": knob, "sampling_rate": 0.5})
            resumed.load_state_dict(both.state_dict())
        elif resumed is not None:
            resumed.step(action)
    clips = [step["clip_norm"] for step in both.history[1]]
    assert clips == pytest.approx([step["clip_norm"] for step in single.history[0]], rel=1e-3)
    assert resumed is not None
    assert resumed.history == both.history


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ("clip_norm,clip_change", "clip_norm and clip_change set the same thing; name one of them"),
        ("clip_scale,budget_pace,clip_change", "clip_scale and clip_change set the same thing"),
        ("all,clip_scale", "clip_norm and clip_scale set the same thing"),
    ],
)
def test_only_one_knob_may_set_the_clip_norm(knobs: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_env(knobs=knobs)
    with pytest.raises(InputError, match="knob 'clip_change' does not exist in method 'fedavg'"):
        make_env(knobs="clip_change", method="fedavg", epsilon="inf")
