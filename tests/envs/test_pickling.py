"""Whatever an environment is made of can be pickled, and a copy in mid-episode goes on as the original does."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import SubprocVecEnv

from envs import REWARDS, DPilotEnv, DPilotVecEnv, EnvCore, make_core
from envs.context import CONTEXT
from envs.knobs import known_knobs, methods_with
from envs.signals import all_features
from fl_core import METHODS, MODELS, RunSettings
from fl_core.models.build import build_model
from policies import CONTROLLERS
from tests.envs.conftest import PLAIN
from tests.markdown import CATALOGUES

SETTINGS = PLAIN | {"rounds": 3, "clients": 6, "evaluation_samples": 50}
COPIERS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "cloudpickle": lambda thing: pickle.loads(cloudpickle.dumps(thing)),
    "deepcopy": copy.deepcopy,
}


def settings_of(method: str) -> dict[str, Any]:
    """The knobs that a method has, and no budget for one that cannot certify it."""
    recipe = METHODS[method]
    clips = any(knob.name == "clip_norm" for knob in recipe.knobs)
    noisy = recipe.private or not recipe.exchanges
    return {"method": method, "knobs": "clip_norm" if clips else "none"} | ({} if noisy else {"epsilon": math.inf})


def start(core: EnvCore) -> None:
    core.reset(range(core.runs), [RunSettings(seed=seed) for seed in range(core.runs)])
    advance(core, 1)


def advance(core: EnvCore, decisions: int = 2) -> list[Any]:
    seen: list[Any] = []
    for number in range(decisions):
        actions = np.full((core.runs, len(core.knobs)), 0.5 - number)
        rewards, ended = core.step(actions)
        seen += [
            rewards.tolist(),
            ended.tolist(),
            core.observe().tolist(),
            [core.info(row) for row in range(core.runs)],
        ]
    return seen


def assert_copies_go_on_alike(core: EnvCore, copiers: Mapping[str, Callable[[Any], Any]] = COPIERS) -> None:
    start(core)
    copies = {name: copier(core) for name, copier in copiers.items()}
    expected = advance(core)
    for name, one in copies.items():
        assert advance(one) == expected, name


def test_every_catalogue_entry_can_be_pickled() -> None:
    entries = [entry for catalogue in CATALOGUES for entry in catalogue.values()]
    entries += [*CONTEXT.values(), *known_knobs().values(), *all_features()]
    assert len(entries) > 100
    for entry in entries:
        assert pickle.loads(pickle.dumps(entry)).__class__ is entry.__class__, entry


@pytest.mark.parametrize("method", METHODS)
def test_copies_go_on_alike_with_every_method(method: str) -> None:
    assert_copies_go_on_alike(make_core(1, **SETTINGS | settings_of(method)), {"pickle": COPIERS["pickle"]})


@pytest.mark.parametrize(
    "settings",
    [
        *({"reward": reward} for reward in REWARDS),
        {"executor": "sequential"},
        {"generator": "clients=6|8", "context": "visible"},
        {"generator": "mixed-scale", "context": "visible"},
        {"signals": "accounted", "telemetry": "clip-bit,accuracy,loss,layer-norms", "telemetry_share": 0.2},
        {"signals": "paper", "knobs": "all", "method": "fedglp-adp"},
    ],
    ids=str,
)
def test_copies_go_on_alike_with_every_reward_and_kind_of_signal(settings: dict[str, Any]) -> None:
    assert_copies_go_on_alike(make_core(2, **SETTINGS | settings))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_pickled(name: str) -> None:
    model = build_model(name, (1, 28, 28), 10)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.initial(3), model.initial(3))


def test_every_face_can_be_copied() -> None:
    single = gym.make("DPilot/Clip-v0", **SETTINGS)
    vector = gym.make_vec("DPilot/Clip-v0", 2, **SETTINGS)
    batch = DPilotVecEnv(2, **SETTINGS)
    for env in (single, vector, batch):
        for copier in COPIERS.values():
            assert copier(env).action_space == env.action_space


@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_controller_can_be_pickled(name: str) -> None:
    kind = CONTROLLERS[name]
    knobs = kind.needed_knobs or "clip_norm"
    able = [set(methods_with(knob)) for knob in knobs.split(",")] if knobs != "none" else [{"dp-fedavg"}]
    method = sorted(set.intersection(*able))[-1]
    settings = {"signals": kind.needed_signals, "telemetry": kind.needed_telemetry or None}
    core = make_core(1, **SETTINGS | settings | {"knobs": knobs, "method": method})
    start(core)
    policy = kind.for_env(core, anchor=0.5, **{one.name: one.default for one in kind.parameters})
    again = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(again.predict(core.observe())[0], policy.predict(core.observe())[0])


def test_knobs_and_signals_cross_processes() -> None:
    rows = SubprocVecEnv([partial(DPilotEnv, **SETTINGS)] * 2, start_method="fork")
    try:
        [signals, _] = rows.get_attr("signals")
        assert [one.name for one in signals][:2] == ["round_fraction", "noise_level"]
        assert rows.get_attr("core")[1].runs == 1
        assert rows.reset().shape == (2, len(signals))  # type: ignore[union-attr]
    finally:
        rows.close()
    vector = gym.make_vec("DPilot/Clip-v0", 2, vectorization_mode="async", **SETTINGS)
    try:
        assert [core.runs for core in vector.call("core")] == [1, 1]  # type: ignore[attr-defined]
    finally:
        vector.close()
