"""Models of stable-baselines3, saved or alive, described such that their policies can be rebuilt without a pickle.

A saved model is a zip. `policy.pth` holds the weights, which torch reads without running code. `data` is JSON in which
whatever JSON cannot hold stands as a pickle with its attributes as text beside it; only the text is read here.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from agents.algorithms import ALGORITHMS
from agents.learners import policy_tensors
from agents.sb3_policies import NeedsPickle, policy_arguments
from agents.weights import Tensors
from fl_core.base.errors import InputError, require

_LARGEST_DATA = 64 << 20
_VERSIONS_DIFFER_BY = 4
"""Attributes in which versions of a learner may differ, and still be the same algorithm."""


_UNIT_BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


@dataclass(frozen=True)
class Facts:
    """Circumstances of a model's training.

    Attributes:
        observations, actions: shapes of its spaces.
        observation_bounds, action_bounds: lowest and highest entry; () where that is not told.
        seed: of the training; None where it had none.
        timesteps: decisions of the training.
        normalized: whether it was trained under `VecNormalize`; None where that is not told.
    """

    observations: tuple[int, ...]
    actions: tuple[int, ...]
    observation_bounds: tuple[float, ...]
    action_bounds: tuple[float, ...]
    seed: int | None
    timesteps: int
    normalized: bool | None


@dataclass(frozen=True)
class Described:
    """Model of stable-baselines3.

    Attributes:
        algo: name in `ALGORITHMS`.
        arguments: those that its policy can be rebuilt with.
        weights: of its policy.
        facts: circumstances of its training.
        version: of stable-baselines3.
    """

    algo: str
    arguments: Mapping[str, Any]
    weights: Tensors
    facts: Facts
    version: str


# ---------------------------------------------------------------- zips


def read_zip(path: Path, algo: str = "") -> Described:
    """Describe a saved model; no pickle in it is read.

    Args:
        path: what `model.save` wrote.
        algo: algorithm that it must be of; "" for any.

    Raises:
        InputError: it is no such zip, damaged, of no algorithm in `ALGORITHMS`, or of another one than asked for.
        NeedsPickle: its policy cannot be told without a pickle.
    """
    data, weights, version = _parts(path)
    found = _algorithm(path, data)
    require(not algo or algo == found, f"'{path}' was trained with {found}, not with {algo}.")
    described = data["policy_kwargs"]
    keywords = {name: value for name, value in described.items() if not name.startswith(":")}
    if data.get("use_sde"):
        keywords["use_sde"] = True
    try:
        return Described(found, policy_arguments(found, weights, keywords), weights, _told(path, data), version)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' describes no model of stable-baselines3: {error} is missing or wrong.") from error


def _parts(path: Path) -> tuple[dict[str, Any], Tensors, str]:
    """Read the JSON, the weights and the version in a zip."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            lost = [name for name in ("data", "policy.pth") if name not in names]
            require(
                not lost,
                f"'{path}' is a zip without {(lost or [''])[0]}, so it is no saved model of stable-baselines3.",
            )
            require(
                archive.getinfo("data").file_size <= _LARGEST_DATA, f"'{path}' describes itself in more than 64 MiB."
            )
            data = json.loads(archive.read("data"))
            weights = torch.load(io.BytesIO(archive.read("policy.pth")), map_location="cpu", weights_only=True)
            stamp = "_stable_baselines3_version"
            version = archive.read(stamp).decode()[:40].strip() if stamp in names else "unknown"
    except OSError as error:
        raise InputError(f"The file '{path}' could not be read: {error.strerror or error}.") from error
    except InputError:
        raise
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(
            f"'{path}' is no zip, or a truncated one, so it holds no model of stable-baselines3."
        ) from error
    except Exception as error:  # torch, json and zlib have errors of their own for damaged content
        raise InputError(f"'{path}' is damaged: its description or its weights cannot be read.") from error
    parts = ("policy_class", "policy_kwargs", "observation_space", "action_space")
    whole = isinstance(data, dict) and all(isinstance(data.get(name), dict) for name in parts)
    require(whole, f"'{path}' does not describe a model of stable-baselines3.")
    tensors = isinstance(weights, dict) and all(isinstance(one, Tensor) for one in weights.values())
    require(tensors, f"'{path}' holds no weights of a policy.")
    finite = all(bool(torch.isfinite(one).all()) for one in weights.values())
    require(finite, f"'{path}' holds weights that are not finite: the training diverged.")
    return data, dict(weights), version


def _algorithm(path: Path, data: Mapping[str, Any]) -> str:
    """Recognise the algorithm by its policy's module and by the attributes that were saved.

    Raises:
        InputError: it is none of the catalogue, or its package is not installed.
        NeedsPickle: the policy is of a class of its user.
    """
    module = str(data["policy_class"].get("__module__", ""))
    places = {name: one.place.partition(":")[0] for name, one in ALGORITHMS.items()}
    saved = {name for name in data if not name.startswith("_")}
    distances: dict[str, int] = {}
    for name in [name for name, package in places.items() if module.startswith(f"{package}.")]:
        learner = ALGORITHMS[name].unprepared({})
        if learner.policy_class.__module__ == module:
            distances[name] = len(saved ^ _saved_attributes(learner))
    if "td3" in distances and data["policy_kwargs"].get("n_critics") == 1:
        del distances["td3"]  # the same attributes as DDPG's, which has one critic
    if not any(module.startswith(f"{package}.") for package in places.values()):
        raise NeedsPickle(f"its policy is of a class of its own, in '{module}'")
    best = min(distances, key=lambda name: distances[name], default="")
    if not best or distances[best] > _VERSIONS_DIFFER_BY:
        raise InputError(
            f"'{path}' is a model with a policy of {module}, but of none of the algorithms {', '.join(ALGORITHMS)}; "
            "export its policy to ONNX or TorchScript instead."
        )
    return best


def _saved_attributes(learner: Any) -> set[str]:
    """Names of the attributes that a learner saves once it is set up, without its private ones."""
    learner.observation_space = learner.action_space = _UNIT_BOX
    learner.n_envs = 1
    if hasattr(learner, "buffer_size"):
        learner.buffer_size = 1
    if hasattr(learner, "target_entropy"):
        learner.target_entropy = -1.0  # otherwise read off the environment, which there is not
    learner._setup_model()
    left_out = set(learner._excluded_save_params()) | {name.partition(".")[0] for name in _torch_names(learner)}
    return {name for name in vars(learner) if name not in left_out and not name.startswith("_")}


def _torch_names(learner: Any) -> list[str]:
    states, variables = learner._get_torch_save_params()
    return [*states, *variables]


def _told(path: Path, data: Mapping[str, Any]) -> Facts:
    """Read the facts off the text of a saved model."""
    for name in ("observation_space", "action_space"):
        kind = str(data[name].get(":type:", ""))
        require("Box" in kind, f"'{path}' was trained with an {name} that is no Box: {kind or 'unknown'}.")
    seen, done = data["observation_space"], data["action_space"]
    return Facts(
        observations=tuple(int(size) for size in seen["_shape"]),
        actions=tuple(int(size) for size in done["_shape"]),
        observation_bounds=_bounds(seen),
        action_bounds=_bounds(done),
        seed=None if data.get("seed") is None else int(data["seed"]),
        timesteps=int(data.get("num_timesteps", 0)),
        # Learners from episodes keep the observation before normalisation under VecNormalize alone, others always.
        normalized=data.get("_last_original_obs") is not None if "rollout_buffer_class" in data else None,
    )


def _bounds(space: Mapping[str, Any]) -> tuple[float, ...]:
    """Lowest and highest entry of a Box, from its text; () where it has none."""
    texts = [str(space[name]) for name in ("low", "high") if name in space]
    numbers = [float(one) for one in re.findall(r"-?(?:inf|\d+\.?\d*(?:e[+-]?\d+)?)", " ".join(texts))]
    return (min(numbers), max(numbers)) if numbers else ()


# ---------------------------------------------------------------- living models


def describe_model(model: BaseAlgorithm) -> Described:
    """Describe a model that this process has trained or loaded.

    Raises:
        InputError: it is of none of the algorithms in `ALGORITHMS`.
        NeedsPickle: its policy is of a class of its user, or made with one.
    """
    algo = algorithm_of(model)
    standard, own = ALGORITHMS[algo].unprepared({}).policy_class, type(model.policy)
    if own is not standard:
        raise NeedsPickle(f"its policy is of the class {own.__name__}")
    keywords = {name: _as_text(value) for name, value in model.policy_kwargs.items()}
    if getattr(model, "use_sde", False):
        keywords["use_sde"] = True
    weights = policy_tensors(model)
    return Described(algo, policy_arguments(algo, weights, keywords), weights, facts_of(model), "")


def facts_of(model: BaseAlgorithm) -> Facts:
    """Collect the facts of a model that this process has trained or loaded.

    Raises:
        InputError: it does not act in a Box, or observe one.
    """
    seen, done = model.observation_space, model.action_space
    if not isinstance(seen, spaces.Box) or not isinstance(done, spaces.Box):
        raise InputError(
            f"The model observes a {type(seen).__name__} and acts in a {type(done).__name__}, not in Boxes."
        )
    original = model._last_original_obs is not None if isinstance(model, OnPolicyAlgorithm) else None
    return Facts(
        observations=seen.shape,
        actions=done.shape,
        observation_bounds=(float(seen.low.min()), float(seen.high.max())),
        action_bounds=(float(done.low.min()), float(done.high.max())),
        seed=model.seed,
        timesteps=int(model.num_timesteps),
        normalized=model.get_vec_normalize_env() is not None or original,
    )


def algorithm_of(model: BaseAlgorithm) -> str:
    """Find the algorithm of a model by its class.

    Raises:
        InputError: it is none of the catalogue.
    """
    own = type(model)
    for name, one in ALGORITHMS.items():
        package, _, made = one.place.partition(":")
        if own.__name__ == made and own.__module__.startswith(f"{package}."):
            return name
    known = ", ".join(one.label for one in ALGORITHMS.values())
    raise InputError(f"The model is a {own.__name__}, but it must be one of {known}; export its policy to TorchScript.")


def _as_text(value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        return str(value)
    return value
