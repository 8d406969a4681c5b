"""A learned controller as one folder: `controller.safetensors` (weights) and `controller.json` (everything else)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy

from agents.algorithms import ALGORITHMS
from agents.weights import Tensors, read_tensors, write_tensors
from envs import EnvCore, EnvSpec
from envs.faces import innermost
from fl_core.base.errors import InputError, require
from fl_core.base.files import write_json
from fl_core.base.sealed import read_sealed, sealed

FORMAT = 1
RECORD, WEIGHTS = "controller.json", "controller.safetensors"
VIEW = ("knobs", "signals", "decision_rounds")
"""Environment settings that a controller depends on; the rest is the problem it is set to."""
_KNOB_FIELDS = ("name", "low", "high", "scale")


@dataclass(frozen=True)
class Blueprint:
    """What a controller is, apart from its weights; all values are JSON-able.

    Attributes:
        algo: learning algorithm, a name of `ALGORITHMS`.
        arguments: arguments of its policy.
        features: names of the observation's entries, in order.
        feature_bound: observations lie in [-feature_bound, feature_bound].
        knobs: name, range and scale of what each action coordinate sets.
        settings: keyword arguments of the environment it was trained in.
        training: what the training took and how it was done (seeds, instances, cost in federated rounds, validation).
    """

    algo: str
    arguments: Mapping[str, Any]
    features: tuple[str, ...]
    feature_bound: float
    knobs: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    training: Mapping[str, Any]

    @property
    def observation_space(self) -> spaces.Box:
        """The space of one observation."""
        return spaces.Box(-self.feature_bound, self.feature_bound, (len(self.features),), np.float32)

    @property
    def action_space(self) -> spaces.Box:
        """The space of one action."""
        return spaces.Box(-1.0, 1.0, (len(self.knobs),), np.float32)

    def make_policy(self) -> BasePolicy:
        """An untrained policy of this kind."""
        return ALGORITHMS[self.algo].policy(self.observation_space, self.action_space, self.arguments)


def knob_records(core: EnvCore) -> tuple[dict[str, Any], ...]:
    """What a controller must agree on about each of an environment's knobs."""
    return tuple({field: getattr(knob, field) for field in _KNOB_FIELDS} for knob in core.knobs)


class LearnedController:
    """A trained policy with the `predict` of a stable-baselines3 model.

    Attributes:
        blueprint: what it is.
        policy: the network, as stable-baselines3 builds it.
    """

    def __init__(self, blueprint: Blueprint, policy: BasePolicy):
        """Take a policy that already has its weights."""
        self.blueprint = blueprint
        self.policy = policy
        policy.set_training_mode(False)

    @property
    def label(self) -> str:
        """A readable name for figures and tables."""
        return f"{ALGORITHMS[self.blueprint.algo].label} (seed {self.blueprint.training.get('seed', '?')})"

    @property
    def view(self) -> dict[str, Any]:
        """Environment settings that it needs: knobs, signals, rounds per decision, and whether contexts are visible."""
        own = self.blueprint.settings
        return {name: own[name] for name in VIEW} | {"context": own.get("context", EnvSpec.context)}

    @property
    def training_rounds(self) -> int:
        """Federated rounds that its training took in all: rollouts, reference runs and validation."""
        return int(sum(self.blueprint.training["cost"].values()))

    @property
    def population(self) -> str:
        """Whose data trained and validated it; before there were populations, it was everybody's."""
        return str(self.blueprint.settings.get("population", "all"))

    @property
    def trained_on(self) -> str:
        """Which instances trained it, and which chose it, in words."""
        about, own = self.blueprint.training, self.blueprint.settings
        drawn = f" that differ in {own['generator']}" if own.get("generator") else ""
        return (
            f"{about.get('episodes', '?')} episodes on training instances of task {own['task']}{drawn}, "
            f"chosen on {len(about.get('validation_instances', []))} validation instances, of {self.population} clients"
        )

    def describe(self) -> dict[str, Any]:
        """Name, parameters and origin, as JSON-able values."""
        return {
            "name": self.blueprint.algo,
            "parameters": dict(self.blueprint.arguments),
            "settings": dict(self.blueprint.settings),
            "training": dict(self.blueprint.training),
        }

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.float32], tuple[NDArray[Any], ...] | None]:
        """Actions for observations; the signature is that of a stable-baselines3 model.

        Args:
            observation: `[features]` or `[n, features]`.
            state: of a recurrent policy, what the call before returned, arrays `[n, ...]`; None at first.
            episode_start: whether each observation is the first of an episode `[n]`.
            deterministic: whether to take the policy's mode instead of a sample.

        Returns:
            Actions `[knobs]` or `[n, knobs]`, float32 in [-1, 1], and the state for the next call.

        Raises:
            InputError: the observation is of another environment.
        """
        array = np.asarray(observation, dtype=np.float32)
        size = len(self.blueprint.features)
        if array.ndim not in (1, 2) or array.shape[-1] != size:
            raise InputError(
                f"observation has shape {array.shape}, but this {self.blueprint.algo} controller was trained on "
                f"{size} features."
            )
        inner = None if state is None else tuple(np.swapaxes(part, 0, 1) for part in state)
        actions, inner = self.policy.predict(array, inner, episode_start, deterministic)
        return actions, None if inner is None else tuple(np.swapaxes(part, 0, 1) for part in inner)

    def check(self, env: Any) -> None:
        """Refuse an environment whose observations or actions mean something else.

        Args:
            env: any face of a DPilot environment, wrapped or not, its core, or a `DummyVecEnv` of them.

        Raises:
            InputError: features, knobs, their ranges or the rounds per decision differ.
        """
        core = core_of(env)
        who = f"this {self.blueprint.algo} controller"
        shown, known = [feature.name for feature in core.features], list(self.blueprint.features)
        require(
            shown == known,
            f"{who} was trained on the signals {', '.join(known)}, but the environment shows {', '.join(shown)}.",
        )
        has, sets = list(knob_records(core)), [dict(knob) for knob in self.blueprint.knobs]
        require(
            has == sets, f"{who} was trained to set {_ranges(sets)}, but the environment's knobs are {_ranges(has)}."
        )
        rounds = self.view["decision_rounds"]
        require(
            core.spec.decision_rounds == rounds,
            f"{who} decides every {rounds} rounds, but decision_rounds of the environment is "
            f"{core.spec.decision_rounds}.",
        )


def core_of(env: Any) -> EnvCore:
    """The core of any face of an environment, wrapped or not, or of a `DummyVecEnv` of them.

    Raises:
        InputError: there is no DPilot environment in it.
    """
    core = innermost(env)
    if not isinstance(core, EnvCore):
        raise InputError(f"A {type(env).__name__} is no DPilot environment.")
    return core


def _ranges(knobs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{knob['name']} from {knob['low']:g} to {knob['high']:g} ({knob['scale']})" for knob in knobs)


# ---------------------------------------------------------------- files


def save_controller(folder: Path, blueprint: Blueprint, weights: Tensors) -> None:
    """Write a controller's folder, whole or not at all; one of that name is replaced.

    Raises:
        InputError: it cannot be written, or the folder holds something else.
    """
    if folder.exists() and not (folder / RECORD).is_file():
        raise InputError(f"'{folder}' exists and is no saved controller, so it is not overwritten.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
            fresh, old = Path(name) / "new", Path(name) / "old"
            checksum = write_tensors(fresh / WEIGHTS, weights)
            write_json(fresh / RECORD, sealed(_record(blueprint, checksum), FORMAT))
            if folder.exists():
                os.rename(folder, old)
            os.rename(fresh, folder)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise InputError(f"The folder '{folder}' could not be written: {error.strerror or error}.") from error


def _record(blueprint: Blueprint, checksum: str) -> dict[str, Any]:
    return {
        "algo": blueprint.algo,
        "policy": dict(blueprint.arguments),
        "features": list(blueprint.features),
        "feature_bound": blueprint.feature_bound,
        "knobs": [dict(knob) for knob in blueprint.knobs],
        "settings": dict(blueprint.settings),
        "training": dict(blueprint.training),
        "weights_sha256": checksum,
    }


def load_controller(folder: Path | str) -> LearnedController:
    """Read a saved controller; no pickle is read, so an untrusted folder can do no worse than be refused.

    Args:
        folder: a controller's folder, or the folder of the training that made it.

    Raises:
        InputError: files are missing, unreadable, of another version, damaged or changed, or do not fit each other.
    """
    path = Path(folder)
    if not (path / RECORD).is_file() and (path / "controller" / RECORD).is_file():
        path = path / "controller"
    require(path.is_dir(), f"'{path}' is no folder, so it holds no controller.")
    require(
        (path / RECORD).is_file(),
        f"'{path}' holds no {RECORD}, so no finished controller; an interrupted training has to be resumed first.",
    )
    record = read_sealed(path / RECORD, FORMAT)
    try:
        blueprint, checksum = _blueprint(record), str(record["weights_sha256"])
        policy = blueprint.make_policy()
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise InputError(f"The file '{path / RECORD}' describes no controller: {_sentence(error)}.") from error
    weights = read_tensors(path / WEIGHTS, checksum)
    try:
        policy.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise InputError(f"The weights in '{path / WEIGHTS}' do not fit the policy that {RECORD} describes.") from error
    return LearnedController(blueprint, policy)


def _blueprint(record: Mapping[str, Any]) -> Blueprint:
    """The blueprint in a record; raises KeyError, TypeError or ValueError where the record holds none."""
    blueprint = Blueprint(
        algo=record["algo"],
        arguments=dict(record["policy"]),
        features=tuple(str(name) for name in record["features"]),
        feature_bound=float(record["feature_bound"]),
        knobs=tuple({field: knob[field] for field in _KNOB_FIELDS} for knob in record["knobs"]),
        settings=dict(record["settings"]),
        training=dict(record["training"]),
    )
    missing = [name for name in VIEW if name not in blueprint.settings]
    if missing or not blueprint.features or not blueprint.knobs or blueprint.algo not in ALGORITHMS:
        raise ValueError(f"it has no {missing[0]}" if missing else "it names no known algorithm, knob or signal")
    sum(blueprint.training["cost"].values())
    return blueprint


def _sentence(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
