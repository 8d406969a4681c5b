"""A learned controller as one folder: `controller.safetensors` (weights) and `controller.json` (everything else)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from stable_baselines3.common.policies import BasePolicy

from agents.algorithms import ALGORITHMS
from agents.blueprint import KNOB_FIELDS, VIEW, Blueprint
from agents.folders import RECORD, WEIGHTS, controller_folder
from agents.formats import EXPORTED
from agents.learned import LearnedController
from agents.untrusted import check_blueprint
from agents.weights import Tensors, read_tensors, tensor_bytes, write_tensors
from fl_core.base.arguments import checked
from fl_core.base.errors import FileError, InputError, require
from fl_core.base.files import temporary_name, write_json
from fl_core.base.sealed import read_sealed, sealed, understood
from fl_core.base.text import short

FORMAT = 1


@checked
def save_controller(folder: Path, blueprint: Blueprint, weights: Tensors) -> None:
    """Write a controller's folder, whole or not at all; one of that name is replaced.

    Raises:
        InputError: it cannot be written (`FileError`), or the folder holds something else.
    """
    if folder.exists() and not (folder / RECORD).is_file():
        raise InputError(f"'{folder}' exists and is no saved controller, so it is not overwritten.")
    staging = temporary_name(folder)
    try:
        fresh, old = staging / "new", staging / "old"
        checksum = write_tensors(fresh / WEIGHTS, weights)
        write_json(fresh / RECORD, sealed(_record(blueprint, checksum), FORMAT))
        if folder.exists():
            os.rename(folder, old)
        os.rename(fresh, folder)
    except OSError as error:
        raise FileError(f"The folder '{folder}' could not be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _record(blueprint: Blueprint, checksum: str) -> dict[str, Any]:
    return {
        "algo": blueprint.algo,
        "policy": dict(blueprint.arguments),
        "features": list(blueprint.features),
        "feature_bound": blueprint.feature_bound,
        "scales": list(blueprint.scales),
        "knobs": [dict(knob) for knob in blueprint.knobs],
        "settings": dict(blueprint.settings),
        "training": dict(blueprint.training),
        "weights_sha256": checksum,
    }


def check_saving(blueprint: Blueprint, policy: BasePolicy) -> None:
    """Refuse a policy that its saved form could not be rebuilt to: save, load and compare actions, all in memory.

    Raises:
        InputError: the rebuilt policy takes other weights, or acts otherwise.
    """
    who = f"algo '{blueprint.algo}' cannot be trained, because what it learns could not be loaded again"
    try:
        rebuilt = _blueprint(json.loads(json.dumps(_record(blueprint, ""), allow_nan=False))).make_policy()
        weights = safetensors.torch.load(tensor_bytes(policy.state_dict()))
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{who}: {' '.join(_sentence(error).split())}.") from error
    asked, made = ({name: one.shape for name, one in each.items()} for each in (weights, rebuilt.state_dict()))
    other = sorted(name for name in {**asked, **made} if asked.get(name) != made.get(name))
    require(not other, f"{who}: the rebuilt policy has other weights, among them {(other or [''])[0]}.")
    rebuilt.load_state_dict(weights, strict=True)
    rebuilt.set_training_mode(False)
    seen = np.random.default_rng(0).uniform(-1, 1, (16, len(blueprint.features))).astype(np.float32)
    wanted, acts = (one.predict(seen, deterministic=True)[0] for one in (policy, rebuilt))
    alike = wanted.shape == acts.shape and np.allclose(wanted, acts, rtol=0, atol=1e-4)  # a GPU rounds otherwise
    require(bool(alike), f"{who}: the rebuilt policy takes other actions.")


@checked
def load_controller(folder: Path | str, env: Any = None) -> LearnedController:
    """Read a saved controller; no pickle is read, so an untrusted folder can do no worse than be refused.

    Args:
        folder: a controller's folder, the folder of the training that made it, or `pretrained:NAME` for one that comes
            with the package.
        env: environment that it is to act in, wrapped or not, or a vector of some: it is checked. A loop that knows
            observations alone, as that of stable-baselines3's `evaluate_policy`, cannot tell one that it does not fit.

    Raises:
        InputError: files are missing, unreadable, of another version, damaged or changed, or do not fit each other; or
            the controller was trained for another environment (`LearnedController.check`).
    """
    controller = _load(controller_folder(folder))
    return controller if env is None else controller.for_env(env)


def _load(path: Path) -> LearnedController:
    record = read_sealed(path / RECORD, FORMAT)
    with understood(f"The file '{path / RECORD}' describes no controller"):
        blueprint, checksum = _blueprint(record), str(record["weights_sha256"])
        check_blueprint(blueprint)
        blueprint.make_policy()  # says what is wrong with its description before any weight is read
    weights = read_tensors(path / WEIGHTS, checksum)
    try:
        return LearnedController.of(blueprint, weights)
    except RuntimeError as error:
        raise InputError(f"The weights in '{path / WEIGHTS}' do not fit the policy that {RECORD} describes.") from error


def _blueprint(record: Mapping[str, Any]) -> Blueprint:
    """The blueprint in a record; raises KeyError, TypeError or ValueError where the record holds none."""
    blueprint = Blueprint(
        algo=record["algo"],
        arguments=dict(record["policy"]),
        features=_texts(record["features"]),
        feature_bound=record["feature_bound"],
        knobs=tuple({field: knob[field] for field in KNOB_FIELDS} for knob in record["knobs"]),
        settings=dict(record["settings"]),
        training=dict(record["training"]),
        scales=_texts(record.get("scales", [])),
    )
    missing = [name for name in VIEW if name not in blueprint.settings]
    known = blueprint.algo in ALGORITHMS or blueprint.algo in EXPORTED
    if missing or not blueprint.features or not blueprint.knobs or not known:
        raise ValueError(f"it has no {missing[0]}" if missing else "it names no known algorithm, knob or signal")
    if blueprint.training["cost"] is not None:
        sum(blueprint.training["cost"].values())
    return blueprint


def _texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{short(value)} is no list of texts")
    return tuple(value)


def _sentence(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
