"""The stable-baselines3 face against its own `DummyVecEnv` of single environments, and under its algorithms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from envs import DPilotProcessVecEnv, DPilotVecEnv
from fl_core.base.errors import InputError
from tests.envs.conftest import TINY, assert_same_info, make_env, random_actions

SETTINGS = TINY | {"rounds": 3}


def ppo(env: Any) -> PPO:
    return PPO(
        "MlpPolicy",
        env,
        n_steps=6,
        batch_size=12,
        n_epochs=2,
        seed=0,
        device="cpu",
        policy_kwargs={"log_std_init": -1.0},
    )


@pytest.mark.parametrize("settings", [{}, {"signals": "accounted", "reward": "paper"}], ids=["public", "accounted"])
def test_rows_equal_single_environments(settings: dict[str, Any]) -> None:
    mine = DPilotVecEnv(2, **(SETTINGS | settings))
    theirs = DummyVecEnv([lambda: make_env(**(SETTINGS | settings)) for _ in range(2)])
    for env in (mine, theirs):
        env.seed(13)
        env.set_options({"epsilon": 3.0})
    np.testing.assert_allclose(mine.reset(), theirs.reset(), rtol=1e-3, atol=1e-3)
    for row in range(2):
        assert_same_info(mine.reset_infos[row], theirs.reset_infos[row])
    for actions in random_actions(4, 8, 2, 1):
        one, other = mine.step(actions), theirs.step(actions)
        np.testing.assert_allclose(one[0], other[0], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(one[1], other[1], atol=0.06)
        np.testing.assert_array_equal(one[2], other[2])
        for row in range(2):
            mine_info, other_info = dict(one[3][row]), dict(other[3][row])
            last, other_last = mine_info.pop("terminal_observation", None), other_info.pop("terminal_observation", None)
            assert (last is None) == (other_last is None)
            if last is not None:
                np.testing.assert_allclose(last, other_last, rtol=1e-3, atol=1e-3)
                assert_same_info(mine.reset_infos[row], theirs.reset_infos[row])
            assert_same_info(mine_info, other_info)


def test_ppo_learns_under_the_usual_wrappers() -> None:
    env = VecNormalize(VecMonitor(DPilotVecEnv(2, **SETTINGS)), norm_obs=False)
    model = ppo(env).learn(24)
    assert len(model.ep_info_buffer) == 8  # type: ignore[arg-type]
    assert {info["l"] for info in model.ep_info_buffer} == {3}  # type: ignore[union-attr]
    env.training = False
    mean, _ = evaluate_policy(model, env, n_eval_episodes=2)
    assert np.isfinite(mean)


def test_ppo_learns_on_stable_baselines3_own_vector() -> None:
    env = make_vec_env("DPilot/Clip-v0", n_envs=2, env_kwargs=SETTINGS)
    model = ppo(env).learn(12)
    assert model.num_timesteps == 12


def test_training_is_deterministic() -> None:
    weights = []
    for _ in range(2):
        model = ppo(VecMonitor(DPilotVecEnv(2, **SETTINGS))).learn(12)
        weights.append(model.policy.state_dict()["action_net.weight"].numpy())
    np.testing.assert_array_equal(*weights)


def test_every_row_plays_its_instance_until_it_is_told_another() -> None:
    env = DPilotVecEnv(2, **(TINY | {"rounds": 1}))
    for seeds in ([41, 42], [43, 41]):
        env.set_instances(seeds)
        env.reset()
        for _ in range(2):
            assert [info["seed"] for info in env.reset_infos] == seeds
            env.step(np.zeros((2, 1), dtype=np.float32))
    with pytest.raises(InputError, match="3 seeds for 2 environments"):
        env.set_instances([1, 2, 3])


def test_seeds_and_options_hold_for_one_reset() -> None:
    env = DPilotVecEnv(2, **SETTINGS)
    env.seed(8)
    env.set_options({"epsilon": 2.0})
    env.reset()
    assert [info["seed"] for info in env.reset_infos] == [1_000_008, 1_000_009]
    assert [one.epsilon for one in env.core.federation.settings] == [2.0, 2.0]
    env.reset()
    assert all(info["seed"] >= 1_000_000 for info in env.reset_infos)
    assert [one.epsilon for one in env.core.federation.settings] == [None, None]


@pytest.mark.parametrize("face", ["rows", "processes"])
def test_attributes_and_methods_reach_the_rows_that_are_named(face: str) -> None:
    """As in stable-baselines3's `DummyVecEnv`: every environment gets the same call, or those of the indices."""
    env = DPilotVecEnv(3, **SETTINGS) if face == "rows" else DPilotProcessVecEnv(3, processes=2, **SETTINGS)
    env.env_method("set_instances", [41])
    env.env_method("set_instances", [7], indices=[2, np.int64(0)])
    env.reset()
    assert [info["seed"] for info in env.reset_infos] == [7, 41, 7]
    assert env.get_attr("instance") == [7, 41, 7]
    assert env.get_attr("instance", indices=[-2, 0, 1, 0]) == [41, 7, 41, 7]
    env.set_attr("mark", "last", indices=2)
    env.set_attr("mark", "first", indices=[0])
    assert env.get_attr("mark", indices=[2, 0]) == ["last", "first"]
    assert not env.has_attr("mark")  # the row between them has none
    env.set_attr("render_mode", "ansi", indices=1)
    assert [text and text[:9] for text in env.env_method("render")] == [None, "round 0/3", None]
    assert env.get_attr("action_space") == [env.action_space] * 3
    assert env.env_is_wrapped(VecMonitor, indices=[0, 2]) == [False, False]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="2 seeds for 1 environment"):
        env.env_method("set_instances", [5, 6])
    with pytest.raises(IndexError):
        env.get_attr("instance", indices=3)
    env.close()


@pytest.mark.parametrize("face", ["rows", "processes", "vector"])
def test_odd_names_and_instances_are_refused_before_anything_changes(face: str) -> None:
    env: Any = {
        "rows": lambda: DPilotVecEnv(2, **SETTINGS),
        "processes": lambda: DPilotProcessVecEnv(2, processes=2, **SETTINGS),
        "vector": lambda: gym.make_vec("DPilot/Clip-v0", 2, **SETTINGS),
    }[face]()
    for seeds in ([-1, 2], ["a", 1], [1.5, 2], [True, 2], 5, None, "ab", [2**70, 1], [1]):
        with pytest.raises(InputError, match=r"(instance|seeds) is|1 seeds for 2 environments"):
            env.set_instances(seeds)
    assert list(env.get_attr("instance")) == [None, None]
    for name in (3, None):
        with pytest.raises(InputError, match="must be text"):
            env.get_attr(name)
        with pytest.raises(InputError, match="must be text"):
            env.set_attr(name, 1)
    for name in ("nope", "", "core.spec"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            env.get_attr(name)
    if face != "vector":
        with pytest.raises(InputError, match="'knobs' is no method of an environment"):
            env.env_method("knobs")
        for indices in ("a", [0.5], True, [None]):
            with pytest.raises(InputError, match="indices holds"):
                env.get_attr("instance", indices)
    env.set_instances(np.array([7, 8]))
    assert list(env.get_attr("instance")) == [7, 8]
    env.close()


def test_pictures_are_drawn_row_by_row() -> None:
    env = DPilotVecEnv(2, **SETTINGS)
    env.reset()
    pictures = env.get_images()
    assert len(pictures) == 2
    assert pictures[0] is not None
    assert pictures[0].dtype == np.uint8
