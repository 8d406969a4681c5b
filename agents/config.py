"""Settings of a training; each field's docstring, or its line in `agents.options`, is its help on the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from agents.algorithms import ALGORITHMS
from agents.curricula import CURRICULA
from agents.options import OPTIONS, option
from agents.teachers import read_teacher
from envs.instances import INSTANCES
from fl_core.base.arguments import take_numbers
from fl_core.base.bounds import Bounds, check_numbers, count
from fl_core.base.devices import DEVICE_NAMES, check_device
from fl_core.base.errors import InputError, require, require_name
from fl_core.run.choices import one_of
from fl_core.run.ranges import SEED

PARALLELS = ("auto", "rows", "processes")
FROM_EPISODES = ("ppo", "a2c")
"""Algorithms that learn from the episodes just played, with a policy that has no memory."""


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training. Every field is checked when the object is made.

    Options that only some algorithms have are None unless given, which takes the algorithm's own default; given to
    another algorithm, they are refused. The defaults of PPO are those that learned a decaying clip norm on the `digits`
    task, in a minute or two on one core.
    """

    algo: Annotated[str, one_of(ALGORITHMS)] = "ppo"
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
    curriculum: Annotated[str, one_of(CURRICULA)] = "uniform"
    """Order in which training instances are played (`dpilot list curricula`)."""
    seed: int = 0
    """Seed of the initial weights, the exploration and the order of the training instances."""
    learning_rate: Annotated[float, tyro.conf.arg(name="agent.learning-rate")] = 1e-3
    """Step size of the optimizer at the beginning; it falls linearly to 0."""
    imitate: str = ""
    """Controller of the catalogue that the policy is a clone of before it learns from rewards, such as probe; empty for
    none. Of ppo and a2c."""
    instance_baseline: bool = False
    """Subtract from every reward the mean of those on the same instance in an update. Of ppo and a2c, with reward
    final-accuracy and several episodes per instance."""
    gamma: float = 1.0
    """Discount of later rewards, in (0, 1]; 1 because a run's accuracy is paid at its end."""
    network: Annotated[tuple[int, ...] | None, option("network")] = None
    activation: Annotated[str | None, option("activation")] = None
    lstm_size: Annotated[int | None, option("lstm_size")] = None
    log_std_init: Annotated[float | None, option("log_std_init")] = None
    n_epochs: Annotated[int | None, option("n_epochs")] = None
    minibatches: Annotated[int | None, option("minibatches")] = None
    gae_lambda: Annotated[float | None, option("gae_lambda")] = None
    clip_range: Annotated[float | None, option("clip_range")] = None
    target_kl: Annotated[float | None, option("target_kl")] = None
    ent_coef: Annotated[float | None, option("ent_coef")] = None
    vf_coef: Annotated[float | None, option("vf_coef")] = None
    max_grad_norm: Annotated[float | None, option("max_grad_norm")] = None
    exploration_noise: Annotated[float | None, option("exploration_noise")] = None
    learning_starts: Annotated[int | None, option("learning_starts")] = None
    replay_size: Annotated[int | None, option("replay_size")] = None
    replay_batch: Annotated[int | None, option("replay_batch")] = None
    replay_ratio: Annotated[float | None, option("replay_ratio")] = None
    polyak: Annotated[float | None, option("polyak")] = None
    validation_instances: int = 16
    """Held-out instances by which the best policy is chosen."""
    validation_every: int = 5
    """Updates between two validations; one comes before the first update and one after the last."""
    checkpoint_every: int = 1
    """Updates between two checkpoints."""
    parallel: Annotated[str, one_of(PARALLELS)] = "auto"
    """Parallel environments: rows (of one tensor program), processes (one per core, each with its part of
    the rows), or auto."""
    device: Annotated[str, tyro.conf.arg(name="agent.device"), one_of(DEVICE_NAMES)] = "cpu"
    """Device that trains the policy (`dpilot list choices`); a small policy is fastest on the CPU."""

    def __post_init__(self) -> None:
        take_numbers(self)
        names: dict[str, Any] = {
            "algo": ALGORITHMS,
            "curriculum": CURRICULA,
            "parallel": PARALLELS,
        }
        for field, allowed in names.items():
            require_name(field, getattr(self, field), allowed)
        check_numbers(self, BOUNDS)
        self._check_options()
        self._check_beginning()
        ALGORITHMS[self.algo].require_installed()
        check_device(self.device)

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
            OPTIONS[name].check(name, value)

    def _check_beginning(self) -> None:
        """Refuse a controller that cannot be imitated, and what the algorithm cannot begin or learn with."""
        if self.imitate:
            read_teacher(self.imitate)
        for name in ("imitate", "instance_baseline"):
            require(
                not getattr(self, name) or self.algo in FROM_EPISODES,
                f"{name} is {getattr(self, name)}, but algo is '{self.algo}'; it is for {' and '.join(FROM_EPISODES)}.",
            )
        require(
            not self.instance_baseline or self.episodes_per_instance > 1,
            f"episodes_per_instance is {self.episodes_per_instance}, but with instance_baseline it must be 2 at least.",
        )

    @property
    def options(self) -> Mapping[str, Any]:
        """Value of every option of the algorithm: the given one, or its default."""
        own = ALGORITHMS[self.algo].options
        given = {name: getattr(self, name) for name in own}
        return {name: own[name] if value is None else value for name, value in given.items()}

    def updates(self, decisions: int) -> int:
        """Number of updates of the policy.

        Args:
            decisions: decisions in a whole episode.
        """
        per_update = self.environments * decisions
        return max(1, math.ceil(self.timesteps / per_update if self.timesteps else self.episodes / self.environments))


BOUNDS: Mapping[str, Bounds] = {
    "environments": count(2, 4096, "each plays a whole federation"),
    "episodes_per_instance": count(1, 4096, "it is a number of environments"),
    "episodes": count(1, 10_000_000, "more take months"),
    "timesteps": count(0, 100_000_000, "more take months"),
    "seed": SEED,
    "learning_rate": Bounds(1e-12, 10, "smaller steps move nothing, and larger ones diverge"),
    "gamma": Bounds(1e-6, 1),
    "validation_instances": INSTANCES,
    "validation_every": count(1, 10_000_000),
    "checkpoint_every": count(1, 10_000_000),
}
"""Ranges of the numbers that every algorithm has, by field; those of the others are in `agents.options`."""


def option_names() -> list[str]:
    """Names of the options that only some algorithms have."""
    return [field.name for field in fields(TrainingConfig) if field.default is None]
