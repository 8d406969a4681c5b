"""Knobs: coordinates to values and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.knobs import Knob, known_knobs, make_knob, make_knobs
from envs.tasks import TASKS, find_task
from fl_core.base.errors import InputError
from tests.envs.conftest import make_env

ALL = [make_knob(task, knob) for task in TASKS.values() for knob in known_knobs().values()]
CLIP = make_knob(find_task("digits"), known_knobs()["clip_norm"])
LINEAR = Knob("share", -2.0, 3.0, 0.5, "linear", "a knob on a linear scale")
knobs = st.sampled_from([*ALL, LINEAR])
coordinates = st.floats(-1, 1)


@given(knobs, coordinates)
def test_encode_inverts_decode(knob: Knob, coordinate: float) -> None:
    value = knob.decode(np.array([coordinate]))
    assert knob.low <= value[0] <= knob.high
    np.testing.assert_allclose(knob.encode(value), [coordinate], atol=1e-9)


@given(knobs, st.floats(0, 1))
def test_decode_inverts_encode(knob: Knob, share: float) -> None:
    value = knob.low + share * (knob.high - knob.low)
    np.testing.assert_allclose(knob.decode(knob.encode(value)), value, rtol=1e-9, atol=1e-12)


@given(knobs, st.floats(min_value=1, allow_nan=False))
def test_coordinates_beyond_the_range_saturate(knob: Knob, beyond: float) -> None:
    np.testing.assert_allclose(knob.decode(np.array([beyond, -beyond])), [knob.high, knob.low], rtol=1e-12)


@given(knobs, st.floats(allow_nan=False))
def test_values_beyond_the_range_saturate(knob: Knob, value: float) -> None:
    coordinate = knob.encode(value)
    assert -1 <= coordinate <= 1
    if value >= knob.high:
        assert coordinate == 1
    if value <= knob.low:
        assert coordinate == -1


@given(knobs)
def test_nan_is_no_value(knob: Knob) -> None:
    assert np.isnan(knob.decode(np.array([math.nan])))


@given(knobs, coordinates, coordinates)
def test_decode_is_monotone(knob: Knob, one: float, other: float) -> None:
    low, high = knob.decode(np.array(sorted((one, other))))
    assert low <= high


def test_the_middle_of_a_log_scale_is_the_geometric_mean() -> None:
    np.testing.assert_allclose(CLIP.decode(np.array([0.0])), math.sqrt(0.1 * 8.0))
    np.testing.assert_allclose(LINEAR.decode(np.array([0.0])), 0.5)


@pytest.mark.parametrize("knob", ALL, ids=lambda knob: f"{knob.name} of {knob.low}")
def test_defaults_lie_inside_the_range(knob: Knob) -> None:
    assert knob.check(knob.default) == knob.default
    assert knob.low < knob.default <= knob.high
    assert knob.summary


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 8.1, -1.0])
def test_check_refuses_what_is_outside(value: float) -> None:
    with pytest.raises(InputError, match=r"clip_norm is .*, but this task allows 0\.1 to 8"):
        CLIP.check(value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("clip", "knob 'clip' is unknown; did you mean clip_norm"),
        ("", "knob '' is unknown; known are .*clip_norm, .*server_learning_rate"),
        ("clip_norm,clip_norm", "each may be named only once"),
        ("server_learning_rate", "knob 'server_learning_rate' does not exist in method 'dp-fedavg'; it has clip_norm"),
    ],
)
def test_make_knobs_refuses(names: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_knobs(find_task("digits"), names, (known_knobs()["clip_norm"],))


def test_actions_arrive_in_the_round_plan() -> None:
    env = make_env(knobs="server_learning_rate, clip_norm")
    assert [knob.name for knob in env.knobs] == ["server_learning_rate", "clip_norm"]
    env.reset(seed=0)
    for action in ([-0.3, 0.7], [5.0, -5.0], [1e30, -1e30]):
        observation, *_, info = env.step(np.array(action, dtype=np.float32))
        expected = [knob.decode(np.array([one]))[0] for knob, one in zip(env.knobs, action, strict=True)]
        assert [info[knob.name] for knob in env.knobs] == pytest.approx(expected, rel=1e-5)
        shown = dict(zip([feature.name for feature in env.signals], observation.tolist(), strict=True))
        for knob, value in zip(env.knobs, expected, strict=True):
            assert shown[f"last_{knob.name}"] == pytest.approx(float(knob.encode(value)), abs=1e-5)
