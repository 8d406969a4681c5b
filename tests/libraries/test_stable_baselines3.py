"""Every algorithm for continuous actions of stable-baselines3 and sb3-contrib trains on an environment as it is."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env

from envs import DPilotVecEnv
from tests.libraries.conftest import ID, TINY

pytestmark = pytest.mark.long
SHORT = {
    "PPO": {"n_steps": 6, "batch_size": 6},
    "A2C": {"n_steps": 3},
    "SAC": {"learning_starts": 6},
    "TD3": {"learning_starts": 6},
    "DDPG": {"learning_starts": 6},
}
CONTRIB = {
    "TRPO": {"n_steps": 6, "batch_size": 6},
    "RecurrentPPO": {"n_steps": 6, "batch_size": 6},
    "TQC": {"learning_starts": 6},
    "CrossQ": {"learning_starts": 6},
    "ARS": {"n_delta": 2},
}


@pytest.mark.parametrize("name", SHORT)
def test_stable_baselines3_trains(name: str) -> None:
    for env in (make_vec_env(ID, 2, env_kwargs=TINY), DPilotVecEnv(2, **TINY)):
        model = getattr(stable_baselines3, name)("MlpPolicy", env, seed=0, device="cpu", **SHORT[name])
        model.learn(24)
        assert model.num_timesteps >= 24


@pytest.mark.parametrize("name", CONTRIB)
def test_sb3_contrib_trains(name: str) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    policy = "MlpLstmPolicy" if name == "RecurrentPPO" else "MlpPolicy"
    env = gym.make(ID, **TINY)
    model = getattr(contrib, name)(policy, env, seed=0, device="cpu", **CONTRIB[name])
    model.learn(24)
    action, _ = model.predict(env.reset(seed=1)[0], deterministic=True)
    assert np.isfinite(action).all()
