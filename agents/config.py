"""What a training is asked to do; each field's docstring is its help on the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro

from fl_core.errors import InputError, require, require_count, require_positive, unknown_name

ALGORITHM_NAMES = ("ppo",)
PARALLELS = ("auto", "rows", "processes")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training. Every field is checked when the object is made.

    The defaults are those that learned a decaying clip norm on the `digits` task, in a minute or two on one core.
    """

    algo: str = "ppo"
    """Learning algorithm: ppo."""
    environments: int = 8
    """Environments that are stepped side by side; each plays one episode per update of the policy."""
    episodes_per_instance: int = 4
    """Environments that play the same instance in an update: they then differ by their actions alone, and share the
    run that their rewards are measured against."""
    episodes: int = 120
    """Episodes to train for, rounded up to whole updates (used unless timesteps is above 0)."""
    timesteps: int = 0
    """Decisions to train for, over all environments; 0 leaves the length to episodes."""
    seed: int = 0
    """Seed of the initial weights, the exploration and the order of the training instances."""
    learning_rate: Annotated[float, tyro.conf.arg(name="agent-learning-rate")] = 1e-3
    """Step size of the optimizer at the beginning; it falls linearly to 0."""
    n_epochs: int = 10
    """Passes over the collected decisions in each update."""
    minibatches: int = 1
    """Parts that the collected decisions are split into in each pass."""
    gamma: float = 1.0
    """Discount of later rewards, in (0, 1]; 1 because a run's accuracy is paid at its end."""
    gae_lambda: float = 0.95
    """Trade-off between bias and variance of the advantages, in [0, 1]."""
    clip_range: float = 0.2
    """How far an update may move the probability of an action."""
    target_kl: float = 0.03
    """An update stops early where the policy has moved further than this (Kullback-Leibler divergence)."""
    ent_coef: float = 0.0
    """Weight of the entropy in the loss."""
    vf_coef: float = 0.5
    """Weight of the value function in the loss."""
    max_grad_norm: float = 0.5
    """Largest norm of a gradient."""
    log_std_init: float = -1.5
    """Natural logarithm of the exploration's standard deviation at the beginning; actions span [-1, 1]."""
    network: tuple[int, ...] = (32, 32)
    """Widths of the hidden layers of policy and value function."""
    validation_instances: int = 16
    """Held-out instances by which the best policy is chosen."""
    validation_every: int = 5
    """Updates between two validations; one comes before the first update and one after the last."""
    checkpoint_every: int = 1
    """Updates between two checkpoints."""
    parallel: str = "auto"
    """How environments run side by side: rows (of one tensor program), processes, or auto."""
    device: Annotated[str, tyro.conf.arg(name="agent-device")] = "cpu"
    """Where the policy is trained: auto, cpu or cuda; a small policy is fastest on the CPU."""

    def __post_init__(self) -> None:
        for field, allowed in (("algo", ALGORITHM_NAMES), ("parallel", PARALLELS), ("device", DEVICES)):
            if getattr(self, field) not in allowed:
                raise unknown_name(field, getattr(self, field), allowed)
        for field in ("episodes", "n_epochs", "minibatches", "validation_instances", "validation_every"):
            require_count(field, getattr(self, field))
        for field in ("checkpoint_every", "episodes_per_instance"):
            require_count(field, getattr(self, field))
        require_count("environments", self.environments, least=2)
        for field in ("timesteps", "seed"):
            require_count(field, getattr(self, field), least=0)
        for field in ("learning_rate", "gamma", "clip_range", "target_kl", "max_grad_norm"):
            require_positive(field, getattr(self, field))
        require(self.gamma <= 1, f"gamma is {self.gamma}, but it must lie in (0, 1].")
        require(0 <= self.gae_lambda <= 1, f"gae_lambda is {self.gae_lambda}, but it must lie in [0, 1].")
        for field in ("ent_coef", "vf_coef"):
            value = getattr(self, field)
            require(0 <= value < math.inf, f"{field} is {value}, but it must be a finite number of at least 0.")
        require(-10 <= self.log_std_init <= 2, f"log_std_init is {self.log_std_init}, but it must lie in [-10, 2].")
        require(len(self.network) > 0, "network is empty, but it needs at least one hidden layer.")
        for width in self.network:
            require_count("A width in network", width)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device is 'cuda', but this machine has no usable CUDA device; use cpu or auto.")

    def updates(self, decisions: int) -> int:
        """Updates of the policy that the training takes.

        Args:
            decisions: decisions in a whole episode.
        """
        per_update = self.environments * decisions
        return max(1, math.ceil(self.timesteps / per_update if self.timesteps else self.episodes / self.environments))
