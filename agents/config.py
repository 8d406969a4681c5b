"""What a training is asked to do; each field's docstring is its help on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
import tyro

from agents.algorithms import ACTIVATIONS, ALGORITHMS
from agents.curricula import CURRICULA
from fl_core.base.errors import InputError, require, require_count, require_name, require_positive

PARALLELS = ("auto", "rows", "processes")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training. Every field is checked when the object is made.

    Options that only some algorithms have are None unless given, which takes the algorithm's own default; given to
    another algorithm, they are refused. The defaults of PPO are those that learned a decaying clip norm on the `digits`
    task, in a minute or two on one core.
    """

    algo: str = "ppo"
    """Learning algorithm (`dpilot list algorithms`)."""
    environments: int = 8
    """Environments that are stepped side by side; each plays one episode per update of the policy."""
    episodes_per_instance: int = 4
    """Environments that play the same instance in an update: they then differ by their actions alone, and share the
    run that their rewards are measured against."""
    episodes: int = 120
    """Episodes to train for, rounded up to whole updates (used unless timesteps is above 0)."""
    timesteps: int = 0
    """Decisions to train for, over all environments; 0 leaves the length to episodes."""
    curriculum: str = "uniform"
    """In which order training instances are played (`dpilot list curricula`)."""
    seed: int = 0
    """Seed of the initial weights, the exploration and the order of the training instances."""
    learning_rate: Annotated[float, tyro.conf.arg(name="agent-learning-rate")] = 1e-3
    """Step size of the optimizer at the beginning; it falls linearly to 0."""
    gamma: float = 1.0
    """Discount of later rewards, in (0, 1]; 1 because a run's accuracy is paid at its end."""
    network: tuple[int, ...] | None = None
    """Widths of the hidden layers (any algorithm: 32 32)."""
    activation: str | None = None
    """Their activation, tanh or relu (ppo, recurrent-ppo: tanh; sac, td3, tqc: relu)."""
    lstm_size: int | None = None
    """Width of the memory (recurrent-ppo: 32)."""
    log_std_init: float | None = None
    """Natural logarithm of the exploration's standard deviation at the beginning; actions span [-1, 1] (ppo,
    recurrent-ppo: -1.5)."""
    n_epochs: int | None = None
    """Passes over the collected decisions in each update (ppo, recurrent-ppo: 10)."""
    minibatches: int | None = None
    """Parts that the collected decisions are split into in each pass (ppo, recurrent-ppo: 1)."""
    gae_lambda: float | None = None
    """Trade-off between bias and variance of the advantages, in [0, 1] (ppo, recurrent-ppo: 0.95)."""
    clip_range: float | None = None
    """How far an update may move the probability of an action (ppo, recurrent-ppo: 0.2)."""
    target_kl: float | None = None
    """An update stops early where the policy has moved further than this Kullback-Leibler divergence (ppo,
    recurrent-ppo: 0.03)."""
    ent_coef: float | None = None
    """Weight of the entropy (ppo, recurrent-ppo: 0; sac, tqc: learned unless given)."""
    vf_coef: float | None = None
    """Weight of the value function in the loss (ppo, recurrent-ppo: 0.5)."""
    max_grad_norm: float | None = None
    """Largest norm of a gradient (ppo, recurrent-ppo: 0.5)."""
    exploration_noise: float | None = None
    """Standard deviation of the noise on actions; they span [-1, 1] (td3: 0.2)."""
    learning_starts: int | None = None
    """Decisions taken at random before anything is learned (sac, td3, tqc: 64)."""
    replay_size: int | None = None
    """Decisions that are remembered (sac, td3, tqc: 100000)."""
    replay_batch: int | None = None
    """Remembered decisions that a gradient step looks at (sac, td3, tqc: 128)."""
    replay_ratio: float | None = None
    """Gradient steps per decision (sac, td3, tqc: 1)."""
    polyak: float | None = None
    """Share by which a gradient step moves the target networks, in (0, 1] (sac, td3, tqc: 0.005)."""
    validation_instances: int = 16
    """Held-out instances by which the best policy is chosen."""
    validation_every: int = 5
    """Updates between two validations; one comes before the first update and one after the last."""
    checkpoint_every: int = 1
    """Updates between two checkpoints."""
    parallel: str = "auto"
    """How environments run side by side: rows (of one tensor program), processes (one per core, each with its part of
    the rows), or auto."""
    device: Annotated[str, tyro.conf.arg(name="agent-device")] = "cpu"
    """Where the policy is trained: auto, cpu or cuda; a small policy is fastest on the CPU."""

    def __post_init__(self) -> None:
        names: dict[str, Any] = {"algo": ALGORITHMS, "curriculum": CURRICULA, "parallel": PARALLELS, "device": DEVICES}
        for field, allowed in names.items():
            require_name(field, getattr(self, field), allowed)
        for field in ("episodes", "validation_instances", "validation_every", "checkpoint_every"):
            require_count(field, getattr(self, field))
        require_count("episodes_per_instance", self.episodes_per_instance)
        require_count("environments", self.environments, least=2)
        for field in ("timesteps", "seed"):
            require_count(field, getattr(self, field), least=0)
        for field in ("learning_rate", "gamma"):
            require_positive(field, getattr(self, field))
        require(self.gamma <= 1, f"gamma is {self.gamma}, but it must lie in (0, 1].")
        self._check_options()
        ALGORITHMS[self.algo].learner_class()
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device is 'cuda', but this machine has no usable CUDA device; use cpu or auto.")

    def _check_options(self) -> None:
        """Refuse options that the algorithm does not have, and values that it cannot take."""
        own = ALGORITHMS[self.algo].options
        for name in option_names():
            value = getattr(self, name)
            if value is None:
                continue
            if name not in own:
                who = ", ".join(algo for algo, one in ALGORITHMS.items() if name in one.options)
                raise InputError(f"{name} is {value}, but algo '{self.algo}' has no such option; it belongs to {who}.")
            _CHECKS[name](name, value)

    @property
    def options(self) -> Mapping[str, Any]:
        """The algorithm's options: as given, or its own default."""
        own = ALGORITHMS[self.algo].options
        given = {name: getattr(self, name) for name in own}
        return {name: own[name] if value is None else value for name, value in given.items()}

    def updates(self, decisions: int) -> int:
        """Updates of the policy that the training takes.

        Args:
            decisions: decisions in a whole episode.
        """
        per_update = self.environments * decisions
        return max(1, math.ceil(self.timesteps / per_update if self.timesteps else self.episodes / self.environments))


def option_names() -> list[str]:
    """The options that not every algorithm need have."""
    return [field.name for field in fields(TrainingConfig) if field.default is None]


# ---------------------------------------------------------------- what values options may take


def _between(low: float, high: float) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
        require(fits, f"{name} is {value!r}, but it must lie in [{low:g}, {high:g}].")

    return check


def _at_least_zero(name: str, value: Any) -> None:
    require(0 <= value < math.inf, f"{name} is {value}, but it must be a finite number of at least 0.")


def _whole_from_zero(name: str, value: Any) -> None:
    require_count(name, value, least=0)


def _share(name: str, value: Any) -> None:
    require_positive(name, value)
    require(value <= 1, f"{name} is {value}, but it must lie in (0, 1].")


def _widths(name: str, value: Any) -> None:
    require(len(value) > 0, f"{name} is empty, but it needs at least one hidden layer.")
    for width in value:
        require_count(f"A width in {name}", width)


def _activation(name: str, value: Any) -> None:
    require_name(name, value, ACTIVATIONS)


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "network": _widths,
    "activation": _activation,
    "log_std_init": _between(-10, 2),
    "gae_lambda": _between(0, 1),
    "ent_coef": _at_least_zero,
    "vf_coef": _at_least_zero,
    "exploration_noise": _at_least_zero,
    "learning_starts": _whole_from_zero,
    "polyak": _share,
    **dict.fromkeys(("clip_range", "target_kl", "max_grad_norm", "replay_ratio"), require_positive),
    **dict.fromkeys(("lstm_size", "n_epochs", "minibatches", "replay_size", "replay_batch"), require_count),
}
