"""The learning algorithms that can be trained, saved and rebuilt here: those of stable-baselines3 and sb3-contrib.

Adding one is adding a line to `ALGORITHMS`, which names its class and the options of a training that it has, with their
defaults. All other options are refused. A training checks before its first episode that what it learns can be saved and
rebuilt (`agents.bundle.check_saving`), so a line either works or is refused at once.
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
    """Size of the experience that an update learns from.

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
    """Constructor keywords that several algorithms share.

    Attributes:
        policy: those of a policy, from the policy's options.
        learner: those of a learner, from all options and the size of an update.
    """

    policy: Callable[[Options], dict[str, Any]]
    learner: Callable[[Options, Episodes], dict[str, Any]]


@dataclass(frozen=True)
class Algorithm:
    """A line of the catalogue.

    Attributes:
        summary: full name, for lists.
        place: package and class of the learner, with a colon between.
        policy_name: name of the policy class in stable-baselines3.
        family: constructor keywords of both.
        options: its options with their defaults.
    """

    summary: str
    place: str
    policy_name: str
    family: Family
    options: Options

    @property
    def label(self) -> str:
        """Readable name for figures and tables."""
        return self.place.partition(":")[2]

    def learner_class(self) -> type[BaseAlgorithm]:
        """Import the class of its learner.

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
        """Select the options that shape its policy, as JSON-able values."""
        chosen = {name: options[name] for name in POLICY_OPTIONS if name in options}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}

    def policy(self, observations: spaces.Box, actions: spaces.Box, arguments: Options) -> BasePolicy:
        """Make an untrained policy.

        Raises:
            KeyError, TypeError, ValueError: the arguments are not those of its policy.
        """
        # A learner may amend the policy that it is asked for (DDPG takes one critic, A2C another optimizer), so one
        # that is never set up says what its policy is made with.
        make: Any = self.learner_class()
        learner = make(
            self.policy_name,
            None,
            policy_kwargs=self.family.policy(arguments),
            device="cpu",
            _init_setup_model=False,
        )
        made: BasePolicy = learner.policy_class(observations, actions, lambda _: 0.0, **learner.policy_kwargs)
        return made

    def learner(self, options: Options, environments: VecEnv, decisions: int, **common: Any) -> BaseAlgorithm:
        """Make a learner with an untrained policy.

        Args:
            options: a value for each of its options.
            environments: what it plays.
            decisions: decisions in an episode.
            **common: keywords that every algorithm takes: `learning_rate`, `gamma`, `device`.

        Raises:
            InputError: its class does not take these options or environments.
        """
        episodes = Episodes(environments.num_envs, decisions, int(np.prod(environments.action_space.shape or (1,))))
        try:
            return self.learner_class()(
                self.policy_name,
                environments,
                policy_kwargs=self.family.policy(self.policy_arguments(options)),
                **self.family.learner(options, episodes),
                **common,
            )
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.label} cannot be trained here: {' '.join(str(error).split())}.") from error


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
    own = {name: value for name, value in options.items() if name not in (*POLICY_OPTIONS, "minibatches")}
    if "minibatches" in options:
        own["batch_size"] = max(2, -(-episodes.total // options["minibatches"]))
    return {"n_steps": episodes.decisions, **own}


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
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
_PASSES: dict[str, Any] = _EPISODES | {"n_epochs": 10, "minibatches": 1, "clip_range": 0.2, "target_kl": 0.03}
_REPLAY: dict[str, Any] = {
    "network": (32, 32),
    "activation": "relu",
    "replay_size": 100_000,
    "replay_batch": 128,
    "replay_ratio": 1.0,
    "learning_starts": 64,
    "polyak": 0.005,
}
_MLP = "MlpPolicy"
ALGORITHMS: dict[str, Algorithm] = {
    "ppo": Algorithm("proximal policy optimization", "stable_baselines3:PPO", _MLP, ON_POLICY, _PASSES),
    "a2c": Algorithm("advantage actor-critic", "stable_baselines3:A2C", _MLP, ON_POLICY, _EPISODES),
    "sac": Algorithm("soft actor-critic", "stable_baselines3:SAC", _MLP, OFF_POLICY, _REPLAY | {"ent_coef": None}),
    "td3": Algorithm(
        "twin delayed deep deterministic policy gradient",
        "stable_baselines3:TD3",
        _MLP,
        OFF_POLICY,
        _REPLAY | {"exploration_noise": 0.2},
    ),
    "ddpg": Algorithm(
        "deep deterministic policy gradient",
        "stable_baselines3:DDPG",
        _MLP,
        OFF_POLICY,
        _REPLAY | {"exploration_noise": 0.2},
    ),
    "recurrent-ppo": Algorithm(
        "proximal policy optimization with a memory (LSTM)",
        "sb3_contrib:RecurrentPPO",
        "MlpLstmPolicy",
        ON_POLICY,
        _PASSES | {"lstm_size": 32},
    ),
    "tqc": Algorithm("truncated quantile critics", "sb3_contrib:TQC", _MLP, OFF_POLICY, _REPLAY | {"ent_coef": None}),
}


def default_text(value: Any) -> str:
    """Write a default of an option in words."""
    if value is None:
        return "learned"
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
