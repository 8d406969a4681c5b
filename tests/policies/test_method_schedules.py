"""Schedules of layer weights, personalization and averages: their formulas, and that runs obey them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from envs import EnvCore, make_core
from fl_core.base.errors import InputError
from fl_core.recipes.catalog import METHODS
from fl_core.run.config import RunSettings
from fl_core.run.evaluation import EVALUATED
from policies import CONTROLLERS, ControllerSpec, make_controller, parse_controller
from tests.policies.conftest import LAYERS, make_view, observe

SMALL: dict[str, Any] = {
    "clients": 6,
    "rounds": 4,
    "local_steps": 1,
    "reward": "final-accuracy",
    "executor": "vectorized",
    "evaluation_samples": 50,
}


def play(core: EnvCore, controller: Any) -> EnvCore:
    core.reset(range(core.runs), [RunSettings(seed=3 + row) for row in range(core.runs)])
    state, start = None, np.ones(core.runs, dtype=bool)
    while not core.finished.all():
        action, state = controller.predict(core.observe(), state, start)
        core.step(action)
        start = np.zeros(core.runs, dtype=bool)
    return core


@pytest.mark.parametrize("spec", ["log-odds", "log-odds:0.3", "log-odds-paid:0.5"])
def test_log_odds_move_by_the_sign_of_the_norms_change(spec: str) -> None:
    """Against a plain loop over layers; norms and log-odds of two episodes side by side, one a round behind."""
    parsed = parse_controller(spec)
    view = make_view(20, knobs=parsed.knobs, signals=parsed.signals)
    controller = make_controller(parsed, view)
    paid = spec.startswith("log-odds-paid")
    signal = "layer_norm_noised" if paid else "release_layer_norm"
    random = np.random.default_rng(4)
    step = controller.values["step"]
    odds = [[math.log(size / (2410 - size)) for size in LAYERS.values()] for _ in range(2)]
    before = [[0.0, 0.0], [0.0, 0.0]]
    state: Any = None
    for t in range(20):
        rounds = [t, max(t - 1, 0)]
        norms = np.exp(random.normal(0, 1, (2, 2)))
        seen = np.stack([observe(view, one) for one in rounds])
        for row in range(2):
            for index, layer in enumerate(LAYERS):
                norm = norms[row, index] / (20 if paid else 1)
                scaled = 2 * norm - 1 if paid else math.log10(norm) / 2
                seen[row, view.column(f"{signal}.{layer}")] = scaled
        action, state = controller.predict(seen, state, np.array([t == 0, t <= 1]))
        for row in range(2):
            for index in range(2):
                if rounds[row] > 0:
                    odds[row][index] += step if norms[row, index] > before[row][index] else -step
                before[row][index] = norms[row, index] if rounds[row] > 0 else 0.0
            weights = [1 / (1 + math.exp(-one)) for one in odds[row]]
            values = [knob.decode(action[row, i : i + 1].astype(float))[0] for i, knob in enumerate(view.knobs)]
            expected = [max(0.01, one / max(weights)) for one in weights]
            assert values == pytest.approx(expected, rel=1e-4)


def test_log_odds_do_what_the_method_does_by_itself() -> None:
    settings = SMALL | {"method": "fedglp-adp", "rounds": 5}
    by_itself = play(make_core(2, **settings, knobs="none"), make_controller("none", make_core(1, knobs="none")))
    core = make_core(2, **settings, knobs="layer_weights")
    controlled = play(core, make_controller("log-odds", core))
    for one, other in zip(by_itself.history, controlled.history, strict=True):
        for before, after in zip(one, other, strict=True):
            assert after["server_norm"] == pytest.approx(before["server_norm"], rel=1e-4)
            assert after["release_layer_norm.fc2"] == pytest.approx(before["release_layer_norm.fc2"], rel=1e-3)


@pytest.mark.parametrize(("limit", "rounds"), [(0.3, 40), (0.8, 10)])
def test_progressive_personalization_spreads_its_limit_over_the_rounds(limit: float, rounds: int) -> None:
    view = make_view(rounds, knobs="personal_limit,personal_rate")
    controller = make_controller(f"progressive:{limit}", view)
    for t in range(rounds):
        action, _ = controller.predict(observe(view, t))
        values = [float(knob.decode(action[i : i + 1].astype(float))[0]) for i, knob in enumerate(view.knobs)]
        assert values == pytest.approx([limit, limit / rounds], rel=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 4.0, 6.5, 100.0])
def test_noise_scaled_personalization_grows_with_the_noise(sigma: float) -> None:
    """sigma_0 = 24/6 in this view."""
    view = make_view(20, knobs="personal_limit,personal_rate")
    controller = make_controller("noise-scaled:0.3:0.2:6", view)
    seen = observe(view, 3)
    seen[view.column("noise_level")] = math.log10(sigma) / 2
    action, _ = controller.predict(seen)
    limit = min(1.0, 0.3 * math.exp(0.2 * (sigma - 4)))
    values = [float(knob.decode(action[i : i + 1].astype(float))[0]) for i, knob in enumerate(view.knobs)]
    assert values == pytest.approx([limit, limit / 20], rel=1e-4)


def test_noise_scaled_personalization_is_what_the_method_does_by_itself() -> None:
    core = make_core(1, **SMALL, method="fedglp-adp", knobs="personal_limit,personal_rate", epsilon=3.0)
    controller = make_controller("noise-scaled", core)
    core.reset([0], [RunSettings(seed=3)])
    action, _ = controller.predict(core.observe())
    chosen = [float(knob.decode(action[0, i : i + 1].astype(float))[0]) for i, knob in enumerate(core.knobs)]
    assert chosen == pytest.approx([knob.default for knob in core.knobs], rel=1e-4)
    play(core, controller)
    assert core.history[0][-1]["personal_share"] > 0


def test_the_tested_model_is_the_mean_of_the_last_models() -> None:
    core = make_core(2, **SMALL, knobs="clip_norm,average_weight")
    controller = make_controller("tail-average:3:0.7", core)
    core.reset([0, 1], [RunSettings(seed=3), RunSettings(seed=4)])
    models = []
    while not core.finished.all():
        action, _ = controller.predict(core.observe())
        core.step(action)
        models.append(core.federation.server.clone())
    mean = torch.stack(models[-3:]).mean(0)
    torch.testing.assert_close(core.federation.state.average, mean, rtol=1e-4, atol=1e-6)
    plain = make_core(2, **SMALL, knobs="clip_norm")
    play(plain, make_controller("fixed:0.7", plain))
    torch.testing.assert_close(plain.federation.server, models[-1], rtol=1e-5, atol=1e-6)  # training is the same
    assert torch.equal(plain.federation.state.average, plain.federation.server)
    plain.federation.state = replace(plain.federation.state, server=mean, average=mean)
    expected = plain.federation.evaluate()
    for name, value in core.federation.evaluate().items():
        np.testing.assert_allclose(value, expected[name], atol=1e-4)


def test_an_average_goes_into_the_models_of_personal_heads() -> None:
    core = make_core(1, **SMALL, method="fedper", knobs="average_weight")
    play(core, make_controller("constant:average_weight=0.3", core))
    averaged = core.federation.evaluate()
    core.federation.state = replace(core.federation.state, average=core.federation.server)
    assert averaged["personal_loss"] != core.federation.evaluate()["personal_loss"]


def test_constants_are_set_alone_and_per_layer() -> None:
    core = make_core(1, **SMALL, method="fedglp-adp", knobs="layer_weights,clip_norm,server_learning_rate")
    controller = make_controller("constant:clip_norm=0.5,layer_weights=0.2", core)
    assert controller.label == "constant clip_norm 0.5, layer_weights 0.2"
    play(core, controller)
    assert [step["clip_norm"] for step in core.history[0]] == pytest.approx([0.5] * 4, rel=1e-5)
    assert core.history[0][0]["server_learning_rate"] == pytest.approx(1.0)
    alone = make_controller("constant:layer_weights.fc2=0.7", core)
    core.reset([0], [RunSettings(seed=1)])
    action, _ = alone.predict(core.observe())
    values = [float(knob.decode(action[0, i : i + 1].astype(float))[0]) for i, knob in enumerate(core.knobs)]
    assert values == pytest.approx([0.1, 0.7, 1.0, 1.0], rel=1e-5)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "constant:budget_pace=2",
            "controller 'constant' sets the knob 'budget_pace', but the environment's",
        ),
        ("constant:clip_norm=9", "clip_norm is 9.0, but this task allows 0.1 to 8"),
        ("log-odds", "controller 'log-odds' sets the knob 'layer_weights', but the environment's knobs are"),
        ("tail-average", "sets the knob 'average_weight'"),
    ],
)
def test_a_controller_made_for_another_space_is_refused(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_controller(spec, make_view())


def test_paid_log_odds_say_what_to_pay_for() -> None:
    core = make_core(1, **SMALL, method="fedglp-adp", knobs="layer_weights", signals="accounted")
    with pytest.raises(InputError, match="make it with signals='accounted' and telemetry='layer-norms'"):
        make_controller("log-odds-paid", core)


@pytest.mark.parametrize("method", METHODS)
def test_every_controller_runs_with_a_method_that_has_its_knobs(method: str) -> None:
    """One round of each, from environments shared by those with the same needs."""
    recipe = METHODS[method]
    has = {knob.name for knob in recipe.knobs} | {"none"}
    epsilon = None if recipe.private or not recipe.exchanges else "inf"
    cores: dict[tuple[str, ...], EnvCore] = {}
    for name, controller in CONTROLLERS.items():
        given = (("server_learning_rate", 0.5),) if controller.assigns else ()
        spec = ControllerSpec(name, assigned=given)
        if not set(spec.knobs.split(",")) <= has:
            continue
        needs = (spec.knobs, spec.signals, controller.needed_telemetry)
        if needs not in cores:
            telemetry = controller.needed_telemetry or None
            shown = {"knobs": spec.knobs, "signals": spec.signals, "telemetry": telemetry}
            cores[needs] = make_core(1, **SMALL | {"rounds": 2}, **shown, method=method, epsilon=epsilon)
        core = cores[needs]
        made = make_controller(spec, core, anchor=0.8)
        core.reset([0], [RunSettings(seed=1)])
        action, _ = made.predict(core.observe(), None, np.array([True]))
        assert core.action_space.shape == action[0].shape
        core.step(action)
        assert np.isfinite(core.observe()).all()
        assert core.history[0] or not recipe.exchanges
        for figures in core.history[0]:
            assert set(figures) | EVALUATED == set(core.figure_names)
