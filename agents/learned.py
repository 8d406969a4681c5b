"""Learned controllers: a trained policy with the features, knobs and settings that it was trained for."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from typing_extensions import override

from agents.algorithms import ALGORITHMS
from agents.blueprint import FORMER, VIEW, Blueprint, core_of
from agents.bounded import BoundedController
from agents.config import TrainingConfig
from agents.costs import decisions_per_episode
from agents.exported import ExportedPolicy
from agents.normalization import Normalization, below_normalization
from agents.weights import Tensors, tensor_bytes
from envs import DPilotEnv, DPilotVecEnv, Setting
from envs.instances import instance_population
from envs.setting import named_parts
from fl_core.base.arrays import require_memory
from fl_core.base.errors import InputError, require


class LearnedController(BoundedController[tuple[NDArray[Any], ...] | None]):
    """A trained policy with the `predict` of a stable-baselines3 model; the state is that of a recurrent one.

    Attributes:
        blueprint: its parts apart from the weights.
        policy: the network, as stable-baselines3 builds it, or one that was exported.
        normalization: by which observations are scaled before the network sees them; None for not at all.
    """

    def __init__(
        self, blueprint: Blueprint, policy: BasePolicy | ExportedPolicy, normalization: Normalization | None = None
    ):
        """Wrap a policy that has its weights."""
        self.blueprint = blueprint
        self.policy = policy
        self.normalization = normalization
        policy.set_training_mode(False)

    @classmethod
    def of(cls, blueprint: Blueprint, tensors: Tensors) -> LearnedController:
        """Make the controller of a blueprint, with its weights and the statistics that lie beside them.

        Raises:
            RuntimeError: the weights do not fit the policy.
            InputError: the statistics are not those of its features.
            AssertionError, KeyError, TypeError, ValueError: the arguments are not those of its policy.
        """
        normalization, weights = Normalization.split(tensors, len(blueprint.features))
        policy = blueprint.make_policy()
        policy.load_state_dict(weights, strict=True)
        return cls(blueprint, policy, normalization)

    @property
    def tensors(self) -> Tensors:
        """Weights, and statistics of the observations where it has some, as `save_controller` takes them."""
        own = {} if self.normalization is None else self.normalization.tensors()
        return {**self.policy.state_dict(), **own}

    @property
    def label(self) -> str:
        """Readable name for figures and tables."""
        return f"{self.blueprint.label} ({self.blueprint.origin})"

    @property
    def view(self) -> dict[str, Any]:
        """Environment settings that it needs: knobs, signals, rounds per decision, visibility of contexts."""
        own = FORMER | dict(self.blueprint.settings)
        return {name: own[name] for name in (*VIEW, "context")}

    @property
    def training_rounds(self) -> int | None:
        """Federated rounds that its training took in all: rollouts, reference runs and validation; None if unknown."""
        cost = self.blueprint.training["cost"]
        return None if cost is None else int(sum(cost.values()))

    @property
    def population(self) -> str:
        """Population of the clients whose data trained and validated it."""
        return str((FORMER | dict(self.blueprint.settings))["population"])

    @property
    def trained_on(self) -> str:
        """Instances that trained and chose it, in words."""
        about, own = self.blueprint.training, self.blueprint.settings
        drawn = f" that differ in {own['generator']}" if own.get("generator") else ""
        imported = about.get("imported")
        if imported is not None:
            return (
                f"imported from {imported['file']} ({imported['library']}), said to be trained on task {own['task']}"
                f"{drawn}, on {self.population} clients"
            )
        return (
            f"{about.get('episodes', '?')} episodes on training instances of task {own['task']}{drawn}, "
            f"chosen on {len(about.get('validation_instances', []))} validation instances, of {self.population} clients"
        )

    def describe(self) -> dict[str, Any]:
        """Name, parameters, origin and a digest of the weights, as JSON-able values."""
        return {
            "name": self.blueprint.algo,
            "parameters": dict(self.blueprint.arguments),
            "settings": dict(self.blueprint.settings),
            "training": dict(self.blueprint.training),
            "weights_sha256": hashlib.sha256(tensor_bytes(self.tensors)).hexdigest(),
        }

    @override
    def predict_unclipped(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], tuple[NDArray[Any], ...] | None]:
        array = np.asarray(observation, dtype=np.float32)
        size = len(self.blueprint.features)
        if array.ndim not in (1, 2) or array.shape[-1] != size:
            raise InputError(
                f"observation has shape {array.shape}, but this {self.blueprint.algo} controller was trained on "
                f"{size} features."
            )
        self._require_unscaled(array)
        require_memory(state, episode_start, len(np.atleast_2d(array)))
        if self.normalization is not None:
            array = self.normalization.scale(array)
        inner = None if state is None else tuple(np.swapaxes(part, 0, 1) for part in state)
        with _unbounded(self.policy):
            actions, inner = self.policy.predict(array, inner, episode_start, deterministic)
        return actions, None if inner is None else tuple(np.swapaxes(part, 0, 1) for part in inner)

    def _require_unscaled(self, observations: NDArray[np.float32]) -> None:
        """Refuse numbers that no environment shows; scaled ones mean something else."""
        bound = self.blueprint.feature_bound
        for value in observations[~(np.abs(observations) <= bound)].ravel():
            raise InputError(
                f"observation holds {value:g}, but this {self.blueprint.algo} controller reads features in "
                f"[-{bound:g}, {bound:g}], as the environment shows them without VecNormalize or its like."
            )

    def check(self, env: Any) -> None:
        """Refuse an environment whose observations or actions mean something else.

        Args:
            env: any face of a DPilot environment, wrapped or not, a vector of such faces, a core, or a control loop.

        Raises:
            InputError: features, their scales, knobs, their ranges or the rounds per decision differ, or wrappers
                change the numbers that are seen or set.
        """
        self.blueprint.check(env)

    def for_env(self, env: Any) -> Self:
        """Return the controller itself, as those that are hand-coded are made for an environment.

        Raises:
            InputError: as `check`.
        """
        self.check(env)
        return self

    # ---------------------------------------------------------------- environments and learners of its own

    def setting(self, **changes: Any) -> Setting:
        """Return the setting that it was trained in, with other values of some fields.

        Unless `population` is given, another set of `instances` brings its own, as in `Setting.of`. Parts of a user's
        own in a file have to be named in `changes`: a record's code is not imported.

        Raises:
            InputError: the setting is no longer possible, or a change is not allowed.
        """
        if "instances" in changes:
            changes.setdefault("population", instance_population(changes["instances"]))
        changes = named_parts(changes)  # which also imports what the caller names, as a record may not
        return Setting.from_record(FORMER | dict(self.blueprint.settings)).replace(**changes)

    def make_env(self, **changes: Any) -> DPilotEnv:
        """Make an environment that it can act in: that of its training, with `changes` as in `setting`."""
        env = DPilotEnv(setting=self.setting(**changes))
        self.check(env)
        return env

    def make_vec_env(self, num_envs: int = 1, **changes: Any) -> DPilotVecEnv:
        """Make a batch of environments for stable-baselines3, as `make_env` does one."""
        venv = DPilotVecEnv(num_envs, setting=self.setting(**changes))
        self.check(venv)
        return venv

    def to_sb3(self, env: Any, **keywords: Any) -> BaseAlgorithm:
        """Make a model of stable-baselines3 with this policy, which can go on learning.

        Its settings are those that `dpilot train` gave it; the optimizer begins anew, and so does a replay buffer.
        Where the controller scales observations, the model's environment (`model.get_env()`) is a `VecNormalize` with
        these statistics, and so is what the model's own `predict` expects.

        Args:
            env: a DPilot environment for Gymnasium or stable-baselines3, wrapped or not.
            **keywords: of the algorithm's class, such as `learning_rate` or `n_steps`.

        Raises:
            InputError: the environment is not what the controller was trained for, or scales observations that the
                controller reads as they are; its policy was exported and so cannot learn; or a keyword is not allowed.
        """
        algo, about = self.blueprint.algo, self.blueprint.training
        require(algo in ALGORITHMS, f"A policy in {self.blueprint.label} only acts: it has no learner to go on with.")
        core = core_of(env)
        require(
            isinstance(env, (gym.Env, VecEnv)),
            f"A {type(env).__name__} is no environment of stable-baselines3; hand in one of gym.make or a VecEnv.",
        )
        self.check(env if self.normalization is None else below_normalization(env))
        venv = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: Monitor(env)])
        if self.normalization is not None:
            venv = self.normalization.wrap(venv)
        config = TrainingConfig(algo=algo)
        recorded = {name: value for name, value in about.get("config", {}).items() if value is not None}
        options = {name: recorded.get(name, value) for name, value in config.options.items()}
        usual = {name: recorded.get(name, getattr(config, name)) for name in ("learning_rate", "gamma")}
        model = ALGORITHMS[algo].learner(
            {**options, **self.blueprint.arguments},
            venv,
            decisions_per_episode(core.task.federation.rounds, core.spec.decision_rounds),
            **{**usual, "seed": about.get("seed"), "device": "cpu", **keywords},
        )
        model.policy.load_state_dict(self.policy.state_dict())
        return model


@contextlib.contextmanager
def _unbounded(policy: BasePolicy | ExportedPolicy) -> Iterator[None]:
    """Keep a policy of stable-baselines3 from clipping its actions; a squashed output is scaled to its bounds."""
    if not isinstance(policy, BasePolicy) or policy.squash_output:
        yield
        return
    bounds = policy.action_space
    policy.action_space = spaces.Box(-np.inf, np.inf, bounds.shape, np.float32)
    try:
        yield
    finally:
        policy.action_space = bounds
