"""The learning algorithms that can be trained, saved and rebuilt here: those of stable-baselines3 and sb3-contrib.

Adding one is adding a line to `ALGORITHMS`, which names its class and the options of a training that it has, with their
defaults. All other options are refused. A training checks before its first episode that what it learns can be saved and
rebuilt (`agents.bundle.check_saving`), so a line either works or is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from agents.libraries import base_class, noise, policies, vec_env
from fl_core.base.errors import InputError
from fl_core.base.libraries import nn, spaces
from fl_core.base.libraries import numpy as np

Options = Mapping[str, Any]
"""Options of an algorithm by name, with a value for each."""
Schedule = Callable[[float], float]

POLICY_OPTIONS = ("network", "activation", "log_std_init", "lstm_size")
"""Options that shape the policy, so that a saved one cannot be rebuilt without them."""
IMPORTED_OPTIONS = ("value_network", "keywords")
"""Further arguments of policies that were trained elsewhere: widths of a value network unlike the policy's, and values
of `POLICY_KEYWORDS` that are not stable-baselines3's own."""
POLICY_KEYWORDS = (
    "clip_mean",
    "enable_critic_lstm",
    "full_std",
    "n_critics",
    "n_lstm_layers",
    "n_quantiles",
    "share_features_extractor",
    "shared_lstm",
    "squash_output",
    "use_expln",
    "use_sde",
)
"""Keywords of stable-baselines3's policies with values of JSON that an imported policy may be made with."""
ACTIVATIONS = {
    "tanh": "Tanh",
    "relu": "ReLU",
    "elu": "ELU",
    "gelu": "GELU",
    "leaky-relu": "LeakyReLU",
    "mish": "Mish",
    "selu": "SELU",
    "sigmoid": "Sigmoid",
    "silu": "SiLU",
    "softplus": "Softplus",
}
"""Class in `torch.nn` of each."""


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

    def learner_class(self) -> type[base_class.BaseAlgorithm]:
        """Import the class of its learner.

        Raises:
            InputError: the package that it is from is not installed.
        """
        try:
            return resolve_name(self.place)  # type: ignore[no-any-return]
        except ModuleNotFoundError as error:
            raise self._missing() from error

    def require_installed(self) -> None:
        """Refuse an algorithm whose package is not installed; nothing is imported.

        Raises:
            InputError: it is not.
        """
        if find_spec(self.place.partition(":")[0]) is None:
            raise self._missing()

    def _missing(self) -> InputError:
        package, _, name = self.place.partition(":")
        return InputError(
            f"{name} is part of {package.replace('_', '-')}, which is not installed; install the extra zoo: "
            "pip install 'dpilot[zoo]'."
        )

    def policy_arguments(self, options: Options) -> dict[str, Any]:
        """Select the options that shape its policy, as JSON-able values."""
        chosen = {name: options[name] for name in (*POLICY_OPTIONS, *IMPORTED_OPTIONS) if name in options}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}

    def policy(self, observations: spaces.Box, actions: spaces.Box, arguments: Options) -> policies.BasePolicy:
        """Make an untrained policy.

        Raises:
            KeyError, TypeError, ValueError: the arguments are not those of its policy.
        """
        asked = self._keywords(arguments)
        learner = self.unprepared(asked)
        keywords = {**learner.policy_kwargs, **asked}
        made: policies.BasePolicy = learner.policy_class(observations, actions, lambda _: 0.0, **keywords)
        return made

    def unprepared(self, keywords: Mapping[str, Any]) -> Any:
        """Make a learner that is never set up, to read off what it makes its policy with.

        A learner may amend the keywords that it is given: DDPG takes one critic, A2C another optimizer.
        """
        make: Any = self.learner_class()
        return make(self.policy_name, None, policy_kwargs=dict(keywords), device="cpu", _init_setup_model=False)

    def _keywords(self, arguments: Options) -> dict[str, Any]:
        """Constructor keywords of a policy."""
        further = {name: arguments["keywords"][name] for name in arguments.get("keywords", {})}
        unknown = sorted(set(further) - set(POLICY_KEYWORDS))
        if unknown:
            raise ValueError(f"'{unknown[0]}' is no keyword of a policy")
        return self.family.policy(arguments) | further

    def learner(
        self, options: Options, environments: vec_env.VecEnv, decisions: int, **common: Any
    ) -> base_class.BaseAlgorithm:
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
            policy = self._keywords(self.policy_arguments(options))
            # Learners that explore in a state-dependent way hand this keyword on to the policy themselves.
            exploring = {"use_sde": policy.pop("use_sde")} if "use_sde" in policy else {}
            keywords = {**self.family.learner(options, episodes), **exploring, **common}
            return self.learner_class()(self.policy_name, environments, policy_kwargs=policy, **keywords)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.label} cannot be trained here: {' '.join(str(error).split())}.") from error


# ---------------------------------------------------------------- learning from the episodes just played


def _actor_critic(arguments: Options) -> dict[str, Any]:
    widths = [int(width) for width in arguments["network"]]
    recurrent = {"lstm_hidden_size": int(arguments["lstm_size"])} if "lstm_size" in arguments else {}
    return {
        "net_arch": {"pi": widths, "vf": _value_widths(arguments, widths)},
        "activation_fn": getattr(nn, ACTIVATIONS[arguments["activation"]]),
        "log_std_init": float(arguments["log_std_init"]),
        **recurrent,
    }


def _value_widths(arguments: Options, widths: list[int]) -> list[int]:
    return [int(width) for width in arguments.get("value_network", widths)]


def _from_episodes(options: Options, episodes: Episodes) -> dict[str, Any]:
    of_policy = (*POLICY_OPTIONS, *IMPORTED_OPTIONS, "minibatches")
    own = {name: value for name, value in options.items() if name not in of_policy}
    if "minibatches" in options:
        own["batch_size"] = max(2, -(-episodes.total // options["minibatches"]))
    return {"n_steps": episodes.decisions, **own}


ON_POLICY = Family(_actor_critic, _from_episodes)

# ---------------------------------------------------------------- learning from all episodes so far


def _actor_and_critics(arguments: Options) -> dict[str, Any]:
    widths = [int(width) for width in arguments["network"]]
    return {
        "net_arch": {"pi": widths, "qf": _value_widths(arguments, widths)},
        "activation_fn": getattr(nn, ACTIVATIONS[arguments["activation"]]),
    }


def _from_replay(options: Options, episodes: Episodes) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if "ent_coef" in options:
        own["ent_coef"] = "auto" if options["ent_coef"] is None else float(options["ent_coef"])
    if "exploration_noise" in options:
        own["action_noise"] = noise.NormalActionNoise(
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
