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
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as check_stable_baselines3
from stable_baselines3.common.vec_env import VecCheckNan, VecMonitor

from envs import KINDS, DPilotVecEnv
from envs.kinds import TASK_NAMES
from envs.tasks import TASKS
from fl_core.data.datasets import dataset_available
from tests.envs.conftest import TINY

IDS = sorted(name for name in gym.registry if name.startswith("DPilot/"))
SETTINGS = TINY | {"rounds": 3}
FEW = SETTINGS | {"clients": 6, "evaluation_samples": 50, "reward": "final-accuracy"}
ALL_SIGNALS = ("public", "accounted", "paper")
CHECKED = [("DPilot/Clip-v0", signals) for signals in ALL_SIGNALS] + [
    (name, ALL_SIGNALS[number % 3]) for number, name in enumerate(IDS) if name != "DPilot/Clip-v0"
]
"""Every id, and every signal set with many of them."""


def settings_for(name: str, settings: dict[str, Any] = SETTINGS) -> dict[str, Any]:
    """Small rounds; the task is the id's own where the id names one."""
    named = {} if "task" in gym.spec(name).kwargs else {"task": settings["task"]}
    return {key: value for key, value in settings.items() if key != "task"} | named


def test_an_id_for_every_task() -> None:
    assert {"Clip", "LayerClip", "Budget", "Personalize", "Joint"} == set(KINDS)
    expected = {f"DPilot/{kind}-v0" for kind in KINDS} | {
        f"DPilot/{kind}-{task}-v0" for kind in KINDS for task in TASKS
    }
    assert expected == set(IDS)
    assert tuple(TASKS) == TASK_NAMES


@pytest.mark.parametrize(("name", "signals"), CHECKED)
def test_checkers_pass(name: str, signals: str) -> None:
    dataset = TASKS[gym.spec(name).kwargs.get("task", "digits")].federation.dataset
    if not dataset_available(dataset):
        pytest.skip(f"{dataset} is not on this machine")
    env = gym.make(name, signals=signals, **settings_for(name, FEW))
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
    if "digits" in name or "task" not in gym.spec(name).kwargs:
        env = gym.make(name, signals="accounted", **settings)
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.unwrapped.core.describe() == env.unwrapped.core.describe()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_every_kind_has_the_vector_face(kind: str, mode: str) -> None:
    env = gym.make_vec(
        f"DPilot/{kind}-v0", num_envs=2, vectorization_mode="vector_entry_point", autoreset_mode=mode, **FEW
    )
    observations, infos = env.reset(seed=3)
    assert infos["round"].tolist() == [0, 0]
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(observations, again)
    env.action_space.seed(0)
    ended = []
    for _ in range(5):
        assert observations.dtype == np.float32
        assert env.observation_space.contains(observations)
        observations, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
        assert rewards.shape == terminated.shape == truncated.shape == (2,)
        assert np.isfinite(rewards).all()
        assert not truncated.any()
        ended.append(terminated)
    assert np.any(ended, axis=0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_face_of_stable_baselines3(kind: str) -> None:
    """Under its own checker of numbers, its monitor, and a learner of one update."""
    settings = {"executor": "vectorized", **KINDS[kind], **FEW}
    venv = VecMonitor(VecCheckNan(DPilotVecEnv(2, **settings), raise_exception=True))
    observations = venv.reset()
    assert isinstance(observations, np.ndarray)
    assert observations.shape == (2, *venv.observation_space.shape)  # type: ignore[misc]
    assert venv.observation_space.contains(observations[0])
    model = PPO("MlpPolicy", venv, n_steps=3, batch_size=6, n_epochs=1, device="cpu", seed=0)
    model.learn(6)
    assert len(model.ep_info_buffer or ()) == 2


def test_make_imports_by_the_module_prefix() -> None:
    env = gym.make("envs:DPilot/Clip-v0", **SETTINGS)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)


def test_describe_is_json() -> None:
    env = gym.make("DPilot/Clip-v0", **SETTINGS)
    described = json.loads(json.dumps(env.unwrapped.core.describe(), allow_nan=False))  # type: ignore[attr-defined]
    assert described["setting"]["task"] == "digits"
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
