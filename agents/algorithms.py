"""The learning algorithms that can be trained, saved and rebuilt here: those of stable-baselines3 and sb3-contrib.

Adding one is adding a line to `ALGORITHMS`. It says which options of a training the algorithm has, and their defaults;
all other options are refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from fl_core.base.errors import InputError

Options = Mapping[str, Any]
"""Options of an algorithm by name, with a value for each."""
Schedule = Callable[[float], float]

POLICY_OPTIONS = ("network", "activation", "log_std_init", "lstm_size")
"""Options that shape the policy, so that a saved one cannot be rebuilt without them."""
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


@dataclass(frozen=True)
class Episodes:
    """What an algorithm learns from in each update.

    Attributes:
        environments: environments side by side.
        decisions: decisions in an episode, one of which each environment plays.
        knobs: coordinates of an action.
    """

    environments: int
    decisions: int
    knobs: int

    @property
    def total(self) -> int:
        """Decisions of an update."""
        return self.environments * self.decisions


@dataclass(frozen=True)
class Family:
    """What algorithms have in common.

    Attributes:
        policy: constructor keywords of a policy, from the policy's options.
        learner: constructor keywords of a learner, from all options and what an update plays.
    """

    policy: Callable[[Options], dict[str, Any]]
    learner: Callable[[Options, Episodes], dict[str, Any]]


@dataclass(frozen=True)
class Algorithm:
    """A line of the catalogue.

    Attributes:
        summary: what it is.
        place: package and class of the learner, with a colon between.
        policy_name: what the learner calls the policy.
        family: how both are made.
        options: the options it has, with their defaults.
    """

    summary: str
    place: str
    policy_name: str
    family: Family
    options: Options

    @property
    def label(self) -> str:
        """A readable name for figures and tables."""
        return self.place.partition(":")[2]

    def learner_class(self) -> type[BaseAlgorithm]:
        """The class of its learner.

        Raises:
            InputError: the package that it is from is not installed.
        """
        package, _, name = self.place.partition(":")
        try:
            return getattr(importlib.import_module(package), name)  # type: ignore[no-any-return]
        except ModuleNotFoundError as error:
            raise InputError(
                f"{name} is part of {package.replace('_', '-')}, which is not installed; install the extra zoo: "
                "pip install 'dpilot[zoo]'."
            ) from error

    def policy_arguments(self, options: Options) -> dict[str, Any]:
        """The options that shape its policy, as JSON-able values."""
        chosen = {name: options[name] for name in POLICY_OPTIONS if name in options}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}

    def policy(self, observations: spaces.Box, actions: spaces.Box, arguments: Options) -> BasePolicy:
        """An untrained policy.

        Raises:
            KeyError, TypeError, ValueError: the arguments are not those of its policy.
        """
        made = self.learner_class().policy_aliases[self.policy_name]
        return made(observations, actions, lambda _: 0.0, **self.family.policy(arguments))

    def learner(self, options: Options, environments: VecEnv, decisions: int, **common: Any) -> BaseAlgorithm:
        """A learner with an untrained policy.

        Args:
            options: a value for each of its options.
            environments: what it plays.
            decisions: decisions in an episode.
            **common: what every algorithm takes: `learning_rate`, `gamma`, `device`.
        """
        episodes = Episodes(environments.num_envs, decisions, int(np.prod(environments.action_space.shape or (1,))))
        return self.learner_class()(
            self.policy_name,
            environments,
            policy_kwargs=self.family.policy(self.policy_arguments(options)),
            **self.family.learner(options, episodes),
            **common,
        )


# ---------------------------------------------------------------- learning from the episodes just played


def _actor_critic(arguments: Options) -> dict[str, Any]:
    widths = [int(width) for width in arguments["network"]]
    recurrent = {"lstm_hidden_size": int(arguments["lstm_size"])} if "lstm_size" in arguments else {}
    return {
        "net_arch": {"pi": widths, "vf": widths},
        "activation_fn": ACTIVATIONS[arguments["activation"]],
        "log_std_init": float(arguments["log_std_init"]),
        **recurrent,
    }


def _from_episodes(options: Options, episodes: Episodes) -> dict[str, Any]:
    same = ("n_epochs", "gae_lambda", "clip_range", "target_kl", "ent_coef", "vf_coef", "max_grad_norm")
    return {
        "n_steps": episodes.decisions,
        "batch_size": max(2, -(-episodes.total // options["minibatches"])),
        **{name: options[name] for name in same},
    }


ON_POLICY = Family(_actor_critic, _from_episodes)

# ---------------------------------------------------------------- learning from all episodes so far


def _actor_and_critics(arguments: Options) -> dict[str, Any]:
    return {
        "net_arch": [int(width) for width in arguments["network"]],
        "activation_fn": ACTIVATIONS[arguments["activation"]],
    }


def _from_replay(options: Options, episodes: Episodes) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if "ent_coef" in options:
        own["ent_coef"] = "auto" if options["ent_coef"] is None else float(options["ent_coef"])
    if "exploration_noise" in options:
        own["action_noise"] = NormalActionNoise(
            np.zeros(episodes.knobs), np.full(episodes.knobs, options["exploration_noise"])
        )
    return {
        "buffer_size": options["replay_size"],
        "batch_size": options["replay_batch"],
        "learning_starts": options["learning_starts"],
        "tau": options["polyak"],
        "train_freq": (episodes.decisions, "step"),
        "gradient_steps": max(1, round(options["replay_ratio"] * episodes.total)),
        **own,
    }


OFF_POLICY = Family(_actor_and_critics, _from_replay)

# ---------------------------------------------------------------- the catalogue

_EPISODES: dict[str, Any] = {
    "network": (32, 32),
    "activation": "tanh",
    "log_std_init": -1.5,
    "n_epochs": 10,
    "minibatches": 1,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "target_kl": 0.03,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
_REPLAY: dict[str, Any] = {
    "network": (32, 32),
    "activation": "relu",
    "replay_size": 100_000,
    "replay_batch": 128,
    "replay_ratio": 1.0,
    "learning_starts": 64,
    "polyak": 0.005,
}
ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm("proximal policy optimization", "stable_baselines3:PPO", "MlpPolicy", ON_POLICY, _EPISODES),
    "sac": Algorithm(
        "soft actor-critic", "stable_baselines3:SAC", "MlpPolicy", OFF_POLICY, _REPLAY | {"ent_coef": None}
    ),
    "td3": Algorithm(
        "twin delayed deep deterministic policy gradient",
        "stable_baselines3:TD3",
        "MlpPolicy",
        OFF_POLICY,
        _REPLAY | {"exploration_noise": 0.2},
    ),
    "recurrent-ppo": Algorithm(
        "proximal policy optimization with a memory (LSTM)",
        "sb3_contrib:RecurrentPPO",
        "MlpLstmPolicy",
        ON_POLICY,
        _EPISODES | {"lstm_size": 32},
    ),
    "tqc": Algorithm(
        "truncated quantile critics", "sb3_contrib:TQC", "MlpPolicy", OFF_POLICY, _REPLAY | {"ent_coef": None}
    ),
}
