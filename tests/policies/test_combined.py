"""Several controllers at once: each acts as it does alone, on knobs of its own, and two on one knob are refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import make_core
from envs.signals import last_action
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from policies import CombinedControl, make_controller, parse_controller
from tests.policies.conftest import make_view, observe

SMALL: dict[str, Any] = {
    "method": "fedglp-adp",
    "clients": 6,
    "rounds": 6,
    "local_steps": 1,
    "reward": "final-accuracy",
    "executor": "vectorized",
    "evaluation_samples": 50,
}
SPECS = {
    "log-odds+budget-linear:0.5": ("layer_weights,budget_pace", "public", ""),
    "fixed:0.5+none": ("clip_norm", "public", ""),
    "exponential-decay:1x:0.5x+noise-scaled": ("clip_calibrated,personal_limit,personal_rate", "public", ""),
    "log-odds-paid:0.4+exponential-decay:2:0.5": ("layer_weights,clip_norm", "accounted", "layer-norms"),
    "log-odds-paid+aqc": ("layer_weights,clip_norm", "accounted", "clip-bit,layer-norms"),
    "budget-step+aqc-exact": ("budget_pace,clip_norm", "paper", ""),
    "random:3:personalization+constant:clip_norm=0.5,budget_pace=2": (
        "personalization,clip_norm,budget_pace",
        "public",
        "",
    ),
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_asks_for_what_its_parts_need_together(spec: str) -> None:
    parsed = parse_controller(spec)
    assert (parsed.knobs, parsed.signals, parsed.telemetry) == SPECS[spec]
    assert str(parsed) == spec
    assert parse_controller(str(parsed)) == parsed
    parts = [parse_controller(one) for one in spec.split("+")]
    assert parsed.parts == tuple(parts)
    assert set(parsed.features) == {name for one in parts for name in one.features}
    assert parsed.clip_norms == tuple(value for one in parts for value in one.clip_norms)
    assert parsed.anchored == any(one.anchored for one in parts)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fixed:1+cosine-decay", "sets the knob 'clip_norm' twice, by fixed and by cosine-decay; only one can"),
        ("log-odds+fixed+aqc:0.5", "sets the knob 'clip_norm' twice, by fixed and by aqc"),
        ("fixed:1+fixed:2x", "sets clip_norm and clip_calibrated, which are the same twice, by fixed and by fixed"),
        ("probe+budget-linear", "sets the knob 'budget_pace' twice, by probe and by budget-linear"),
        ("probe+fixed", "sets clip_median and clip_norm, which are the same twice, by probe and by fixed"),
        ("progressive+noise-scaled", "sets the knob 'personal_limit' twice, by progressive and by noise-scaled"),
        ("progressive+random:0:personalization", "sets the knob 'personal_limit' twice, by progressive and by random"),
        ("log-odds+random:0:all", "lets random set all knobs; name its own"),
        ("log-odds+fixd:1", "controller 'fixd' is unknown; did you mean fixed"),
        ("log-odds+", "controller '' is unknown"),
        ("log-odds+ppo:runs/x", "controller 'ppo' is unknown"),
    ],
)
def test_parts_that_cannot_act_at_once_are_refused_in_a_sentence(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_controller(spec)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("spec", ["fixed:1e+0", "constant:clip_norm=1e+0", "budget-exponential:+2"])
def test_a_plus_before_a_digit_is_part_of_a_number(spec: str) -> None:
    assert parse_controller(spec).others == ()


def test_a_plus_in_the_name_of_a_file_separates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a+b.py").write_text("from policies import FixedClip\nclass Mine(FixedClip):\n    name = 'mine'\n")
    assert parse_controller("a+b.py:Mine:2").name == "a+b.py:Mine"
    assert [one.name for one in parse_controller("log-odds+a+b.py:Mine:2").parts] == ["log-odds", "a+b.py:Mine"]
    assert [*parse_controller("log-odds+a+b.py:Mine:2").origins] == ["a+b.py:Mine"]


def test_each_part_acts_as_it_does_alone() -> None:
    """Two episodes side by side, one starting anew on the way; the parts' memory differs in size."""
    names = ["log-odds:0.4", "budget-linear:0.5", "aqc:0.4", "random:7:server_learning_rate"]
    spec = parse_controller("+".join(names))
    view = make_view(20, knobs=spec.knobs, signals=spec.signals)
    together = make_controller(spec, view)
    alone = [parse_controller(name) for name in names]
    single = [one.make(view.limited(one.knobs.split(",")), None) for one in alone]
    random = np.random.default_rng(2)
    states: list[Any] = [None] * len(names)
    state: Any = None
    for t in range(12):
        seen = np.stack([observe(view, round_index) for round_index in (t, max(t - 5, 0))])
        seen += random.normal(0, 0.1, seen.shape).astype(np.float32) * (np.arange(seen.shape[1]) > 0)
        start = np.array([t == 0, t in (0, 5)])
        actions, state = together.predict(seen, state, start)
        acted = [part.predict(seen, states[i], start) for i, part in enumerate(single)]
        states = [memory for _, memory in acted]
        columns = [knob.name for part in single for knob in part.view.knobs]
        expected = dict(zip(columns, np.concatenate([action for action, _ in acted], axis=1).T, strict=True))
        assert sorted(columns) == sorted(knob.name for knob in view.knobs)
        np.testing.assert_array_equal(actions, np.stack([expected[knob.name] for knob in view.knobs], axis=1))
    assert [len(one or ()) for one in states] == [2, 0, 0, 1]
    assert len(state) == 3


def test_memory_of_other_controllers_is_refused() -> None:
    spec = parse_controller("log-odds+budget-linear")
    view = make_view(knobs=spec.knobs)
    controller = make_controller(spec, view)
    seen = observe(view, 0)[None]
    with pytest.raises(InputError, match=r"state has 1 arrays, but the memory of 'log-odds .* \+ linear .*' has 2"):
        controller.predict(seen, (np.zeros((1, 2)),))
    with pytest.raises(InputError, match="must be None or what predict returned before"):
        controller.predict(seen, (np.zeros((2, 2)), np.zeros((2, 2))))
    no_memory = make_controller("fixed+budget-linear", make_view(knobs="clip_norm,budget_pace"))
    assert no_memory.predict(np.zeros((3, len(no_memory.view.features))))[1] is None


@pytest.mark.parametrize("decay", ["exponential-decay:2:0.5", "exponential-decay:2x:0.5x"])
def test_paid_norms_are_read_in_units_of_the_clip_norm_that_another_part_sets(decay: str) -> None:
    """The relative norm grows, the absolute one falls: the layer's log-odds must fall."""
    spec = parse_controller(f"log-odds-paid:0.5+{decay}")
    view = make_view(20, knobs=spec.knobs, signals=spec.signals)
    controller = make_controller(spec, view)
    clip = view.knob("clip_norm") or view.knob("clip_calibrated")
    assert clip is not None

    def seen(t: int, relative: float, norm: float) -> Any:
        row = observe(view, t)
        for name in ("fc1", "fc2"):
            row[view.column(f"layer_norm_noised.{name}")] = 2 * relative - 1
        row[view.column(last_action(clip.name))] = float(clip.encode(norm))
        return row[None]

    _, state = controller.predict(seen(0, 0.1, 2.0))
    _, first = controller.predict(seen(1, 0.2, 2.0), state)  # 0.4
    _, second = controller.predict(seen(2, 0.3, 1.0), first)  # 0.3
    assert first is not None
    assert second is not None
    np.testing.assert_allclose(second[0], first[0] - 0.5)


def test_label_and_description_are_those_of_the_parts() -> None:
    controller = make_controller("budget-linear:0.5+fixed:2x", make_view(knobs="budget_pace,clip_calibrated"))
    assert controller.label == "linear budget (first/last 0.5) + fixed 2x"
    linear, fixed = controller.describe()["parts"]
    assert linear == {"name": "budget-linear", "parameters": {"ratio": 0.5}}
    assert fixed["clip_norms"] == "in multiples of the calibrated norm"


def test_a_run_has_what_all_parts_set() -> None:
    spec = parse_controller("exponential-decay:2:0.5+budget-linear:0.5+progressive:0.6")
    core = make_core(1, **SMALL, knobs=spec.knobs)
    controller = make_controller(spec, core)
    assert isinstance(controller, CombinedControl)
    controller.check(core)
    core.reset([0], [RunSettings(seed=5)])
    state: Any = None
    while not core.finished.all():
        action, state = controller.predict(core.observe(), state)
        core.step(action)
    rounds = core.history[0]
    np.testing.assert_allclose([one["clip_norm"] for one in rounds], [2 * 4 ** (-t / 5) for t in range(6)], rtol=1e-5)
    spent = np.array([one["noise_multiplier"] ** -2.0 for one in rounds])
    np.testing.assert_allclose(spent / spent[-1], np.linspace(0.5, 1, 6), rtol=1e-4)
    assert rounds[-1]["personal_share"] == pytest.approx(0.5, abs=0.01)  # of five releases: the sixth comes after
    with pytest.raises(InputError, match="is made for the knobs"):
        controller.check(make_core(1, **SMALL, knobs="clip_norm"))


def test_an_anchor_reaches_the_parts_that_derive_from_it() -> None:
    controller = make_controller("log-odds+exponential-decay", make_view(knobs="layer_weights,clip_norm"), anchor=0.8)
    assert isinstance(controller, CombinedControl)
    assert controller.parts[1].values == {"start": 1.6, "end": 0.4}
    assert math.isclose(controller.parts[0].values["step"], 0.8)
