"""The probe: what it sets when, what it costs, and what it gains where the scale of updates is unknown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envs import EnvCore, instance_seeds, make_core
from envs.playing import run_to_the_end
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from policies import make_controller, parse_controller
from tests.policies.conftest import make_view

SMALL: dict[str, Any] = {"reward": "final-accuracy", "executor": "vectorized"}
SPEC = parse_controller("probe")


def played(spec: str, runs: int, **settings: Any) -> EnvCore:
    parsed = parse_controller(spec)
    core = make_core(runs, knobs=parsed.knobs, signals=parsed.signals, **{**SMALL, **settings})
    seeds = instance_seeds("test", runs, 40)
    run_to_the_end(core, make_controller(parsed, core), [RunSettings(seed=one) for one in seeds], lambda done: None)
    return core


def observed(rounds: int, **features: float) -> tuple[Any, NDArray[np.float64]]:
    controller = make_controller("probe:0.8:0.2", make_view(rounds=rounds, knobs=SPEC.knobs, signals="accounted"))
    rows = np.zeros((rounds, len(controller.view.features)))
    rows[:, controller.view.column("round_fraction")] = 2 * np.arange(rounds) / rounds - 1
    rows[:, controller.view.column("rounds")] = math.log10(rounds) - 2
    for name, value in features.items():
        rows[:, controller.view.column(name)] = value
    actions, _ = controller.predict(rows)
    return controller, actions


def values(controller: Any, actions: NDArray[np.float64], name: str) -> list[float]:
    place = [knob.name for knob in controller.view.knobs].index(name)
    return [float(one) for one in controller.view.knobs[place].decode(actions[:, place])]


def test_a_few_rounds_probe_cheaply_and_the_rest_decays_in_units_of_the_median() -> None:
    controller, actions = observed(40, signal=math.log10(1.608), calibrated_step=math.log10(1.098))  # those of digits
    clips = values(controller, actions, "clip_median")
    assert clips[:5] == pytest.approx([1.0] * 5, rel=1e-5)
    assert (clips[5], clips[-1]) == pytest.approx((0.8, 0.2), rel=1e-5)
    assert np.allclose(np.diff(np.log(clips[5:])), math.log(0.25) / 34, atol=1e-5)
    pace = controller.values["pace"]
    assert values(controller, actions, "budget_pace") == pytest.approx([pace] * 5 + [1.0] * 35, rel=1e-5)
    assert values(controller, actions, "telemetry_share") == pytest.approx([0.5] * 5 + [0.01] * 35, rel=1e-5)
    assert values(controller, actions, "server_learning_rate") == pytest.approx([0.05] * 5 + [1.0] * 35, rel=2e-3)


def test_the_server_learning_rate_makes_up_for_short_local_steps_and_the_clip_norm_for_its_range() -> None:
    long, short = (
        observed(40, signal=math.log10(1.608), calibrated_step=math.log10(1.098 * factor)) for factor in (2.0, 0.1)
    )
    assert values(*long, "server_learning_rate")[-1] == pytest.approx(0.5, rel=2e-3)
    assert values(*long, "clip_median")[-1] == pytest.approx(0.2, rel=1e-3)
    assert values(*short, "server_learning_rate")[-1] == pytest.approx(2.0, rel=1e-5)
    assert values(*short, "clip_median")[-1] == pytest.approx(0.2 * 10 / 2, rel=2e-3)


def test_a_short_run_probes_a_quarter_of_its_rounds_at_most() -> None:
    controller, actions = observed(8)
    assert values(controller, actions, "telemetry_share")[:3] == pytest.approx([0.5, 0.5, 0.01], rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"guarantee": "as-published"}, {"method": "fedglp-adp", "sampling_rate": 0.5}, {"placement": "distributed"}],
)
def test_every_release_is_charged_and_the_budget_holds(settings: dict[str, Any]) -> None:
    core = played("probe", 1, clients=12, rounds=8, local_steps=1, delta=0.01, **settings)
    budget = core.federation.charging.budgets[0]
    assert core.history[0][-1]["epsilon_spent"] <= 7.5 * (1 + 1e-9)
    charges = [{one.name: one.noise_multiplier for one in charge.releases} for charge in budget.charges]
    assert len(charges) == 8
    assert all({"update", "clip-bit"} <= set(one) for one in charges)
    for one, probing in zip(charges, [True] * 2 + [False] * 6, strict=True):
        share = one["clip-bit"] ** -2 / sum(value**-2 for value in one.values())
        assert share == pytest.approx(0.5 if probing else 0.01, rel=1e-4)
    if not settings or "placement" in settings:  # a GDP filter: the squares of 1/σ add up to what ε = 7.5 allows
        spent = sum(value**-2 for one in charges for value in one.values())
        assert spent == pytest.approx(8 / core.federation.charging.budgets[0].uniform_noise_multiplier ** 2, rel=1e-3)
        third = sum(value**-2 for value in charges[0].values()) / spent
        assert third == pytest.approx(make_controller("probe", core).values["pace"] / 8, rel=1e-3)


def test_it_gains_over_the_default_clip_norm_where_the_scale_of_updates_is_unknown() -> None:
    settings: dict[str, Any] = {"generator": "update_scale=0.2|5", "instances": "test", "rounds": 20}
    cores = [played(spec, 4, **settings) for spec in ("probe", "fixed")]
    probe, fixed = (np.array([core.final_accuracy(row) for row in range(4)]) for core in cores)
    assert (probe - fixed).mean() > 0.1


def test_a_method_without_a_clip_norm_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="knob 'clip_median' does not exist in method 'fedavg'"):
        played("probe", 1, method="fedavg", epsilon=math.inf)
