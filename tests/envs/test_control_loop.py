"""Control loop of a run that is no simulation, held against the simulated one."""

import json
import math

import numpy as np
import pytest

from envs import ControlLoop, Setting, make_core
from envs.playing import decisions
from fl_core.base.errors import InputError
from fl_core.models.layout import Outline
from fl_core.privacy.ledger import Ledger
from fl_core.run.config import RunSettings
from policies import AdaptiveQuantileClip, FixedClip
from policies.catalog import CONTROLLERS

SETTINGS = {"clients": 12, "rounds": 5, "sampling_rate": 0.5, "local_steps": 1, "delta": 0.01, "epsilon": 6.0}
PROBE = {
    "knobs": "clip_median,server_learning_rate,budget_pace,telemetry_share",
    "signals": "accounted",
    "telemetry": "clip-bit",
}
RUN = RunSettings(seed=3)
LAYOUT = Outline({"layer": 3}, classes=2)


def outline(core):
    return Outline({span.name: span.stop - span.start for span in core.layout.layers}, core.layout.classes)


def small_loop(controller=FixedClip.for_env, **changes):
    return ControlLoop(Setting.of(**SETTINGS | changes), controller, LAYOUT)


def play(loop, rounds=100):
    """Do rounds of empty cohorts; returns the noise multipliers."""
    done = []
    while len(done) < rounds and (now := loop.next_round()) is not None:
        done.append(now.noise_multiplier)
        loop.observe_release(np.full(3, 0.1 * len(done)), np.zeros(3))
    return done


@pytest.mark.parametrize(
    ("controller", "changes"),
    [
        ("fixed", {}),
        ("aqc", {"signals": "accounted"}),
        ("aqc", {"signals": "accounted", "decision_rounds": 2, "sampling_rate": 1.0}),
        ("probe", PROBE | {"rounds": 8}),
        ("budget-exponential", {"knobs": "budget_pace"}),
        ("log-odds", {"knobs": "layer_weights", "method": "fedglp-adp"}),
        ("random", {"knobs": "clip_scale,budget_pace", "context": "visible", "update_scale": 3.0}),
        ("random", {"knobs": "clip_change", "context": "visible", "partition": "shards(2)"}),
    ],
)
def test_a_loop_does_what_the_environment_does(controller, changes):
    build = CONTROLLERS[controller].for_env
    core = make_core(1, **SETTINGS | changes, reward="final-accuracy")
    core.reset([0], [RUN])
    loop = ControlLoop(core.setting, build, outline(core), RUN)
    assert np.array_equal(loop.observation, core.observe()[0])
    for _ in decisions(core, build(core)):
        for figures in core.history[0][loop.rounds :]:
            now = loop.next_round()
            assert now.clip_norm == pytest.approx(figures["clip_norm"] / changes.get("update_scale", 1.0), rel=1e-6)
            assert now.noise_multiplier == pytest.approx(figures["noise_multiplier"], rel=1e-12)
            scale = changes.get("update_scale", 1.0)
            told = {name: value for name, value in figures.items() if name in ("unclipped_share_noised",)}
            for name in figures:
                if name.startswith("release_"):
                    unit = 1.0 if name in ("release_norm_ratio", "release_alignment") else scale
                    told[name] = figures[name] / unit
            loop.observe(told)
        np.testing.assert_allclose(loop.observation, core.observe()[0], rtol=1e-6, atol=1e-7)
    assert loop.over
    assert loop.next_round() is None
    assert loop.ledger.rows == core.federation.ledgers[0].rows


def test_a_charge_comes_before_the_round_and_a_failing_record_of_it_loses_the_round():
    loop = small_loop()
    seen = []

    def refuse(row, charges):
        seen.append(charges["ledger"].round)
        raise InputError("The disk is full.")

    loop.charging.on_charge = refuse
    with pytest.raises(InputError, match="disk is full"):
        loop.next_round()
    assert (seen, loop.rounds, len(loop.ledger.charges)) == ([0], 1, 1)
    loop.charging.on_charge = None
    assert loop.next_round().index == 1


def test_lost_rounds_keep_their_charge_and_never_come_back():
    loop = small_loop()
    indices = []
    while (now := loop.next_round()) is not None:
        indices.append(now.index)
        if now.index % 2:
            loop.give_up()
        else:
            loop.observe_release(np.ones(3), np.zeros(3))
    assert indices == list(range(5))
    assert len(loop.ledger.charges) == 5
    assert loop.ledger.epsilon_spent() == pytest.approx(6.0, rel=1e-3)


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize(
    ("controller", "changes"),
    [
        ("random", {"knobs": "clip_scale"}),
        ("log-odds", {"knobs": "layer_weights", "method": "fedglp-adp"}),
        ("random", {"decision_rounds": 3}),
    ],
)
def test_a_saved_loop_goes_on_alike(controller, changes, observed):
    build = CONTROLLERS[controller].for_env
    loop, other = small_loop(build, **changes), small_loop(build, **changes)
    play(loop, 2)
    if not observed:
        loop.next_round()
    state = loop.state_dict()
    state["plain"] = json.loads(json.dumps(state["plain"], allow_nan=False))
    other.load_state_dict(state)
    if not observed:
        loop.give_up()
    assert np.array_equal(loop.observation, other.observation)
    assert play(loop) == play(other)
    assert loop.ledger.rows == other.ledger.rows


def test_a_ledger_that_was_charged_further_than_the_state_loses_those_rounds():
    loop, other = small_loop(), small_loop()
    play(loop, 1)
    state = loop.state_dict()
    loop.next_round()
    other.load_state_dict(state, loop.ledger)
    assert (other.rounds, other.next_round().index) == (2, 2)
    assert other.observation[0] == pytest.approx(2 * 2 / 5 - 1)
    with pytest.raises(InputError, match="knows 1 rounds, but its ledger has charged 0"):
        small_loop().load_state_dict(state, small_loop().ledger)


@pytest.mark.parametrize("state", [{}, None, {"arrays": {}, "plain": {}}])
def test_a_state_of_something_else_is_refused_in_a_sentence(state):
    with pytest.raises(InputError, match=r"^([Tt]he )?state "):
        small_loop().load_state_dict(state)


def test_a_given_ledger_is_the_one_that_is_charged():
    ledger = small_loop().ledger
    loop = ControlLoop(Setting.of(**SETTINGS), FixedClip.for_env, LAYOUT, ledger=ledger)
    loop.next_round()
    assert len(ledger.charges) == 1


def test_policies_of_all_makes_act():
    loop = ControlLoop(Setting.of(**SETTINGS), lambda env: lambda seen: np.zeros((len(seen), 1)), LAYOUT)
    assert loop.next_round().clip_norm == pytest.approx(math.sqrt(0.1 * 8.0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: small_loop(guarantee="as-published"), "guarantee is 'as-published'"),
        (lambda: small_loop(client_epsilon="2,6"), "client_epsilon is '2,6'"),
        (lambda: small_loop(lambda env: None, method="local-only", knobs="none", epsilon=math.inf), "releases nothing"),
        (lambda: small_loop(AdaptiveQuantileClip.for_env), "reads the signal 'unclipped_share_noised'"),
        (
            lambda: ControlLoop(
                Setting.of(**SETTINGS), FixedClip.for_env, LAYOUT, ledger=Ledger(3.0, 0.01, 0.5, 5, adaptive=False)
            ),
            "The ledger's state has epsilon 3",
        ),
        (lambda: small_loop().observe({}), "No round was handed out"),
        (lambda: small_loop().give_up(), "No round was handed out"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_round_that_is_handed_out_must_be_observed_whole():
    loop = small_loop()
    loop.next_round()
    with pytest.raises(InputError, match="Round 1 was handed out and neither observed nor given up"):
        loop.next_round()
    with pytest.raises(InputError, match="sees release_alignment, release_norm_ratio, which"):
        loop.observe({})
    with pytest.raises(InputError, match="figure 'release_norm' is nan"):
        loop.observe({"release_norm": math.nan})
    with pytest.raises(InputError, match="figure 'release_nor' is unknown"):
        loop.observe({"release_nor": 1.0})
    with pytest.raises(InputError, match=r"total has shape \(2,\), but the model has 3 parameters"):
        loop.observe_release(np.zeros(2), np.zeros(3))
    loop.observe_release(np.zeros(3), np.zeros(3))


def test_a_controller_without_a_finite_number_is_charged_nothing():
    loop = small_loop(lambda env: lambda seen: np.full((len(seen), 1), np.nan))
    with pytest.raises(InputError, match="'clip_norm' is nan, but it must be a finite number"):
        loop.next_round()
    assert loop.ledger.charges == ()
