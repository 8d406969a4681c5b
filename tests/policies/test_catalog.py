"""Specs: what is read, what is refused and with which words, and what becomes of a spec in an environment."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from envs.relative_clip import CALIBRATED
from fl_core.base.errors import InputError
from policies import CONTROLLERS, ControllerSpec, View, make_controller, parse_controller
from tests.policies.conftest import make_view

VALID = {
    "fixed:0.5": ("fixed", (0.5,)),
    "fixed": ("fixed", ()),
    "best-fixed": ("best-fixed", ()),
    "exponential-decay": ("exponential-decay", ()),
    "exponential-decay:2:0.5": ("exponential-decay", (2.0, 0.5)),
    "exponential-decay:0.5:2": ("exponential-decay", (0.5, 2.0)),
    "linear-decay:2:0.5": ("linear-decay", (2.0, 0.5)),
    "server-lr-decay": ("server-lr-decay", ()),
    "server-lr-decay:0.7": ("server-lr-decay", (0.7,)),
    "server-lr-decay:0.7:0.1": ("server-lr-decay", (0.7, 0.1)),
    "aqc": ("aqc", ()),
    "aqc:0.4": ("aqc", (0.4,)),
    "aqc:0.4:0.3:2": ("aqc", (0.4, 0.3, 2.0)),
    "budget-uniform": ("budget-uniform", ()),
    "budget-exponential:3": ("budget-exponential", (3.0,)),
    "budget-step:4:0.3": ("budget-step", (4.0, 0.3)),
    "cosine-decay:2:0.5": ("cosine-decay", (2.0, 0.5)),
    "step-decay:2:0.5:4": ("step-decay", (2.0, 0.5, 4.0)),
    "tail-average:5": ("tail-average", (5.0,)),
    "tail-average:5:0.7": ("tail-average", (5.0, 0.7)),
    "log-odds:0.4": ("log-odds", (0.4,)),
    "progressive:0.5": ("progressive", (0.5,)),
    "noise-scaled:0.3:0.2:8": ("noise-scaled", (0.3, 0.2, 8.0)),
    "client-budget:0": ("client-budget", (0.0,)),
    "random": ("random", ()),
    "random:3": ("random", (3.0,)),
    " fixed:1e-1 ": ("fixed", (0.1,)),
    "fixed:1x": ("fixed", (1.0,)),
    "exponential-decay:1.5x:0.4x": ("exponential-decay", (1.5, 0.4)),
    "server-lr-decay:2x:0.1": ("server-lr-decay", (2.0, 0.1)),
    "aqc:0.4:0.3:2x": ("aqc", (0.4, 0.3, 2.0)),
}


@pytest.mark.parametrize("spec", VALID)
def test_reads(spec: str) -> None:
    parsed = parse_controller(spec)
    assert (parsed.name, parsed.parameters) == VALID[spec]
    assert parse_controller(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fixd:1", "controller 'fixd' is unknown; did you mean fixed"),
        ("exponential", "did you mean exponential-decay"),
        ("", "controller '' is unknown; known are aqc"),
        ("zzz", "known are aqc, aqc-exact"),
        ("fixed:1:2", r"has 2 parameters, but fixed\[:CLIP_NORM\] takes at most 1"),
        ("best-fixed:1", "has 1 parameters, but best-fixed takes no parameters"),
        ("fixed:a", "clip_norm of controller 'fixed:a' is 'a', but it must be a finite number"),
        ("fixed:", "is '', but it must be a finite number"),
        ("fixed:nan", "is 'nan', but it must be a finite number"),
        ("fixed:inf", "is 'inf', but it must be a finite number"),
        ("fixed:0", "clip_norm of controller 'fixed' is 0, but it must be a finite number above 0"),
        ("fixed:-1", "is -1, but"),
        ("exponential-decay:2", "has start but no end; give all or none"),
        ("exponential-decay:2:0", "end of controller 'exponential-decay' is 0"),
        ("aqc:0", "quantile of controller 'aqc' is 0, but it must be a number above 0 and below 1"),
        ("aqc:1", "quantile of controller 'aqc' is 1"),
        ("aqc:0.5:0", "rate of controller 'aqc' is 0"),
        ("aqc:0.5:0.2:0", "start of controller 'aqc' is 0"),
        ("aqc:0.5:0.2:1:1", "takes at most 3"),
        ("server-lr-decay:1:0", "end of controller 'server-lr-decay' is 0"),
        ("random:-1", "seed of controller 'random' is -1, but it must be a whole number"),
        ("random:1.5", "seed of controller 'random' is 1.5"),
        ("random:1:clip_norm:2", r"has 3 parameters, but random\[:SEED\[:KNOB,KNOB\]\] takes at most 1"),
        (
            "step-decay:2:0.5:1.5",
            "steps of controller 'step-decay' is 1.5, but it must be a whole number of at least 1",
        ),
        ("step-decay:2", "has start but no end; give all or none"),
        ("tail-average:0", "last of controller 'tail-average' is 0"),
        ("client-budget:-1", "kappa of controller 'client-budget' is -1, but it must be a finite number of at least 0"),
        ("exponential-decay:2x:0.5", "has clip norms in two units; write an x behind all of them or none"),
        ("server-lr-decay:1:0.5x", "end of controller 'server-lr-decay:1:0.5x' is '0.5x', but it must be a finite"),
        ("fixed:x", "clip_norm of controller 'fixed:x' is ''"),
        ("constant", "A value of controller 'constant' is '', but it must read constant:KNOB=VALUE"),
        ("constant:0.5", "is '0.5', but it must read constant:KNOB=VALUE"),
        ("constant:clip=1", "knob of controller 'constant:clip=1' 'clip' is unknown; did you mean clip_norm"),
        ("constant:clip_norm=x", "clip_norm of controller 'constant:clip_norm=x' is 'x', but it must be a finite"),
        ("constant:clip_norm=1,clip_norm=2", "sets clip_norm twice"),
    ],
)
def test_refuses_in_one_sentence(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_controller(spec)
    assert str(caught.value).count("\n") == 0
    assert str(caught.value).endswith(".")


def test_usage_shows_the_parameters() -> None:
    assert CONTROLLERS["aqc"].usage() == "aqc[:QUANTILE[:RATE[:START]]]"
    assert CONTROLLERS["exponential-decay"].usage() == "exponential-decay[:START:END]"
    assert CONTROLLERS["server-lr-decay"].usage() == "server-lr-decay[:CLIP_NORM[:END]]"
    assert CONTROLLERS["best-fixed"].usage() == "best-fixed"
    assert CONTROLLERS["tail-average"].usage() == "tail-average[:LAST[:CLIP_NORM]]"
    assert CONTROLLERS["step-decay"].usage() == "step-decay[:START:END[:STEPS]]"
    assert CONTROLLERS["constant"].usage() == "constant:KNOB=VALUE[,KNOB=VALUE]"
    assert CONTROLLERS["random"].usage() == "random[:SEED[:KNOB,KNOB]]"
    assert [one.default_text for one in CONTROLLERS["exponential-decay"].parameters] == [
        "2 x anchor clip norm",
        "0.5 x anchor clip norm",
    ]
    assert [one.default_text for one in CONTROLLERS["aqc"].parameters] == ["0.5", "0.2", "the task's default clip_norm"]


def test_multiples_are_set_by_a_knob_of_their_own_and_keep_their_unit() -> None:
    spec = parse_controller("server-lr-decay:2x:0.1")
    assert (str(spec), spec.clip_norms) == ("server-lr-decay:2x:0.1", ())
    assert spec.knobs == f"{CALIBRATED},server_learning_rate"
    controller = make_controller(spec, make_view(knobs=spec.knobs))
    assert controller.label == "server learning rate decay to 0.1, clip 2x"
    assert "multiples" in controller.describe()["clip_norms"]
    observation = np.zeros(len(controller.view.features))
    action, _ = controller.predict(observation)
    assert 0.05 * 400 ** ((float(action[0]) + 1) / 2) == pytest.approx(2.0, rel=1e-6)
    with pytest.raises(InputError, match="signal 'last_clip_calibrated' is not among those"):
        make_controller(spec, make_view(knobs="clip_norm,server_learning_rate"))
    with pytest.raises(InputError, match=r"clip_norm is 30\.0, but this task allows 0.05 to 20"):
        make_controller("fixed:30x", make_view(knobs=CALIBRATED))


def test_needs_of_the_environment() -> None:
    needs = {name: (ControllerSpec(name).knobs, ControllerSpec(name).signals) for name in CONTROLLERS}
    assert needs.pop("aqc") == ("clip_norm", "accounted")
    assert needs.pop("probe") == ("clip_median,budget_pace,telemetry_share,server_learning_rate", "accounted")
    assert needs.pop("aqc-exact") == ("clip_norm", "paper")
    assert needs.pop("server-lr-decay") == ("clip_norm,server_learning_rate", "public")
    for name in ("uniform", "exponential", "printed", "linear", "step"):
        assert needs.pop(f"budget-{name}") == ("budget_pace", "public")
    assert needs.pop("tail-average") == ("clip_norm,average_weight", "public")
    assert needs.pop("log-odds") == ("layer_weights", "public")
    assert needs.pop("log-odds-paid") == ("layer_weights", "accounted")
    assert needs.pop("progressive") == needs.pop("noise-scaled") == ("personal_limit,personal_rate", "public")
    assert needs.pop("client-budget") == ("client_budget_strength", "public")
    assert needs.pop("constant") == needs.pop("none") == ("none", "public")
    assert set(needs.values()) == {("clip_norm", "public")}


def test_anchored_says_where_a_search_comes_first() -> None:
    anchored = {spec for spec in VALID if parse_controller(spec).anchored}
    assert anchored == {"best-fixed", "exponential-decay", "server-lr-decay", "tail-average:5"}


@pytest.mark.parametrize(
    ("spec", "assigned", "knobs"),
    [
        ("constant:clip_norm=0.5", {"clip_norm": 0.5}, "clip_norm"),
        (
            "constant:layer_weights.fc1=0.3, layer_weights.fc2=1,budget_pace=2",
            {"layer_weights.fc1": 0.3, "layer_weights.fc2": 1.0, "budget_pace": 2.0},
            "layer_weights,budget_pace",
        ),
        ("random:3:clip_norm,budget_pace", {"seed": 3.0}, "clip_norm,budget_pace"),
        ("random:3:all", {"seed": 3.0}, "all"),
        ("random", {}, "clip_norm"),
    ],
)
def test_specs_that_name_knobs_ask_for_an_environment_with_them(spec: str, assigned: dict, knobs: str) -> None:
    parsed = parse_controller(spec)
    assert parsed.named_parameters() == assigned
    assert parsed.knobs == knobs
    assert parse_controller(str(parsed)) == parsed


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_every_controller_is_made_from_its_needs_and_describes_itself(name: str) -> None:
    spec = ControllerSpec(name)
    view = make_view(knobs=spec.knobs, signals=spec.signals)
    controller = make_controller(spec, view, anchor=0.8)
    described = json.loads(json.dumps(controller.describe(), allow_nan=False))
    assert described["name"] == name == controller.name
    assert set(described["parameters"]) == {one.name for one in controller.parameters}
    assert all(math.isfinite(value) for value in described["parameters"].values())
    assert controller.label
    assert "{" not in controller.label
    assert controller.summary
    assert all(one.summary for one in controller.parameters)


def test_make_controller_takes_the_anchor_only_for_what_is_left_out(public: View) -> None:
    assert make_controller("exponential-decay", public, anchor=0.8).values == {"start": 1.6, "end": 0.4}
    assert make_controller("exponential-decay:2:0.5", public, anchor=0.8).values == {"start": 2.0, "end": 0.5}
    assert make_controller("best-fixed", public, anchor=0.8).label == "best fixed 0.8"
    with pytest.raises(InputError, match="needs a tuned clip norm"):
        make_controller("best-fixed", public)
    for anchor in (float("nan"), 0.0, 100.0):
        with pytest.raises(InputError, match=r"(anchor|clip_norm) is"):
            make_controller("exponential-decay", public, anchor=anchor)
