"""The learning algorithms of stable-baselines3 that can be trained, saved and rebuilt here.

Adding one is adding a line to `ALGORITHMS` (and its name to `agents.config.ALGORITHM_NAMES`): how its learner is made
for a training, and how its policy is made again from plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from agents.config import TrainingConfig

Plain = dict[str, Any]
Schedule = Callable[[float], float]


@dataclass(frozen=True)
class Algorithm:
    """A line of the catalogue.

    Attributes:
        summary: what it is.
        arguments: the policy's arguments for a training, as JSON-able values.
        policy: an untrained policy of (observation space, action space, arguments).
        learner: the learner of (config, environments, decisions per episode, learning rate), with such a policy.
    """

    summary: str
    arguments: Callable[[TrainingConfig], Plain]
    policy: Callable[[spaces.Box, spaces.Box, Mapping[str, Any]], BasePolicy]
    learner: Callable[[TrainingConfig, VecEnv, int, Schedule], BaseAlgorithm]


def _ppo_arguments(config: TrainingConfig) -> Plain:
    return {"network": list(config.network), "activation": "tanh", "log_std_init": config.log_std_init}


def _ppo_keywords(arguments: Mapping[str, Any]) -> dict[str, Any]:
    widths = [int(width) for width in arguments["network"]]
    return {
        "net_arch": {"pi": widths, "vf": widths},
        "activation_fn": {"tanh": nn.Tanh, "relu": nn.ReLU}[arguments["activation"]],
        "log_std_init": float(arguments["log_std_init"]),
    }


def _ppo_policy(observations: spaces.Box, actions: spaces.Box, arguments: Mapping[str, Any]) -> BasePolicy:
    return ActorCriticPolicy(observations, actions, lambda _: 0.0, **_ppo_keywords(arguments))


def _ppo_learner(config: TrainingConfig, environments: VecEnv, decisions: int, rate: Schedule) -> BaseAlgorithm:
    """PPO whose rollouts are whole episodes."""
    return PPO(
        "MlpPolicy",
        environments,
        learning_rate=rate,
        n_steps=decisions,
        batch_size=-(-decisions * config.environments // config.minibatches),
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.ent_coef,
        vf_coef=config.vf_coef,
        max_grad_norm=config.max_grad_norm,
        target_kl=config.target_kl,
        policy_kwargs=_ppo_keywords(_ppo_arguments(config)),
        device=config.device,
    )


ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm("proximal policy optimization", _ppo_arguments, _ppo_policy, _ppo_learner),
}
