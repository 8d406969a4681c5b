"""The checkers of Gymnasium and stable-baselines3, for every registered id and signal set."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env as check_gymnasium
from stable_baselines3.common.env_checker import check_env as check_stable_baselines3

import envs  # noqa: F401  (registers the environments)
from envs.tasks import TASKS
from fl_core.data.datasets import dataset_available
from tests.envs.conftest import TINY

IDS = sorted(name for name in gym.registry if name.startswith("DPilot/"))
SETTINGS = TINY | {"rounds": 3}


def settings_for(name: str) -> dict[str, Any]:
    """Small rounds; the task is the id's own where the id names one."""
    named = {"task": SETTINGS["task"]} if name == "DPilot/Clip-v0" else {}
    return {key: value for key, value in SETTINGS.items() if key != "task"} | named


def test_an_id_for_every_task() -> None:
    assert {"DPilot/Clip-v0", *(f"DPilot/Clip-{task}-v0" for task in TASKS)} <= set(IDS)


@pytest.mark.parametrize("signals", ["public", "accounted", "paper"])
@pytest.mark.parametrize("name", IDS)
def test_checkers_pass(name: str, signals: str) -> None:
    dataset = TASKS[gym.spec(name).kwargs.get("task", "digits")].federation.dataset
    if not dataset_available(dataset):
        pytest.skip(f"{dataset} is not on this machine")
    env = gym.make(name, signals=signals, **settings_for(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_gymnasium(env.unwrapped, skip_render_check=signals != "public")
        check_stable_baselines3(env.unwrapped)


@pytest.mark.parametrize("name", [name for name in IDS if name.endswith("-v0")])
def test_spec_is_json(name: str) -> None:
    settings = settings_for(name)
    restored = EnvSpec.from_json(gym.spec(name).to_json())
    assert restored.id == name
    assert restored.max_episode_steps is None
    if "digits" in name or name == "DPilot/Clip-v0":
        env = gym.make(name, signals="accounted", **settings)
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.unwrapped.core.describe() == env.unwrapped.core.describe()  # type: ignore[attr-defined]


def test_make_imports_by_the_module_prefix() -> None:
    env = gym.make("envs:DPilot/Clip-v0", **SETTINGS)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)


def test_describe_is_json() -> None:
    env = gym.make("DPilot/Clip-v0", **SETTINGS)
    described = json.loads(json.dumps(env.unwrapped.core.describe(), allow_nan=False))  # type: ignore[attr-defined]
    assert described["spec"]["task"] == "digits"
    assert described["knobs"][0]["name"] == "clip_norm"
    assert len(described["features"]) == env.observation_space.shape[0]  # type: ignore[index]


def test_step_after_the_end_asks_for_a_reset() -> None:
    env = gym.make("DPilot/Clip-v0", **SETTINGS).unwrapped
    action = np.zeros(1, dtype=np.float32)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(action)
    env.reset(seed=0)
    for _ in range(3):
        env.step(action)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(action)
