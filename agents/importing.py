"""Policies that were trained without `dpilot train`, made into controllers that are saved and compared like its own."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from agents.blueprint import Blueprint, core_of, knob_records
from agents.import_sources import PLAIN, ImportOptions, Source, read_source, short, source_of
from agents.learned import LearnedController
from agents.normalization import Normalization, below_normalization
from agents.sb3_models import Facts
from envs import EnvCore, Setting
from envs.faces import cores
from envs.signals import FEATURE_BOUND
from fl_core.base.arguments import checked
from fl_core.base.errors import InputError, require


@checked
def import_policy(path: Path | str, setting: Setting, options: ImportOptions | None = None) -> LearnedController:
    """Make a controller of a file: a model of stable-baselines3 (zip), TorchScript or ONNX.

    No pickle is read unless `trust` is set: whoever makes one chooses what it does. What a plain model of
    stable-baselines3 needs to act lies outside the pickles of its zip.

    Args:
        path: the file.
        setting: of the environments that it was trained in; nothing in the file tells their knobs and signals.
        options: what else the file does not tell.

    Raises:
        InputError: the file cannot be read, needs trust, or does not fit the setting.
    """
    path, options = Path(path), options or ImportOptions()
    core = EnvCore(setting)
    normalization = _statistics(options, core)
    source = read_source(path, options)
    if source.facts is not None:
        _check_shapes(f"'{path}'", source.facts, core)
        _check_scale(f"'{path}'", source.facts, options)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    name = options.name or path.stem
    imported = {"name": name, "file": path.name, "sha256": content, "library": source.library}
    cost = None if options.training_rounds is None else {"training": options.training_rounds}
    controller = _controller(source, core, {"imported": imported, "cost": cost}, normalization)
    _try(controller, f"'{path}'")
    return controller


@checked
def from_sb3(model: BaseAlgorithm, env: Any = None) -> LearnedController:
    """Make a controller of a model of stable-baselines3, with the statistics of its `VecNormalize`.

    A policy of the user's own class becomes a graph of its operators: it acts, but cannot go on learning.

    Args:
        model: trained, or loaded.
        env: the environment that it was trained in, wrapped or not; None takes the model's own.

    Raises:
        InputError: there is no DPilot environment, it does not fit the model or differs from the model's own in signals
            or knobs, wrappers other than `VecNormalize` change what is seen, or the model is of an algorithm that is
            not known here.
    """
    own = model.get_env()
    env = own if env is None else env
    require(env is not None, "The model has no environment; hand in the one that it was trained in.")
    core = core_of(env)
    normalization = Normalization.of(env) or Normalization.of(own)
    source = source_of(model)
    assert source.facts is not None
    _check_shapes("The model", source.facts, core)
    _check_scaling(source.facts, env, own)
    imported = {"name": "from_sb3", "file": f"a {type(model).__name__} in memory", "library": source.library}
    about = {"imported": imported, "cost": None}
    if env is not own and isinstance(cores(own)[0], EnvCore):
        _controller(source, core_of(own), about, normalization).check(core)
    controller = _controller(source, core, about, normalization)
    controller.check(below_normalization(env))
    _try(controller, "The model")
    seen = _observations(controller, 16)
    shown = seen if normalization is None else normalization.scale(seen)
    wanted, _ = model.predict(shown, deterministic=True)
    alike = np.allclose(controller.predict(seen)[0], wanted, rtol=0, atol=1e-5)
    require(alike, "The model acts otherwise after it is rebuilt, so it cannot be saved.")
    return controller


def _controller(
    source: Source, core: EnvCore, training: Mapping[str, Any], normalization: Normalization | None
) -> LearnedController:
    facts = {} if source.facts is None else {"seed": source.facts.seed, "timesteps": source.facts.timesteps}
    blueprint = Blueprint(
        algo=source.algo,
        arguments=source.arguments,
        features=tuple(feature.name for feature in core.features),
        feature_bound=FEATURE_BOUND,
        knobs=knob_records(core),
        settings=core.setting.as_record(),
        training={**facts, **training},
        scales=tuple(feature.scaled for feature in core.features),
    )
    own = {} if normalization is None else normalization.tensors()
    try:
        return LearnedController.of(blueprint, {**source.tensors, **own})
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The policy cannot be rebuilt from its weights: {' '.join(str(error).split())}.") from error


# ---------------------------------------------------------------- statistics of observations


def _statistics(options: ImportOptions, core: EnvCore) -> Normalization | None:
    """Read what `VecNormalize.save` wrote, a pickle.

    Raises:
        InputError: it is not trusted, cannot be read, or is of another number of features.
    """
    if options.normalization in ("", PLAIN):
        return None
    path = Path(options.normalization)
    require(path.is_file(), f"The file '{path}' does not exist.")
    require(
        options.trust,
        f"'{path}' is a pickle, which may run any code when it is read; if you made it yourself, --trust reads it.",
    )
    try:
        wrapper = pickle.loads(path.read_bytes())
    except Exception as error:  # a pickle may raise anything
        raise InputError(f"'{path}' could not be loaded: {short(error)}.") from error
    require(isinstance(wrapper, VecNormalize), f"'{path}' holds a {type(wrapper).__name__}, not a VecNormalize.")
    found = Normalization.of(wrapper)
    require(found is not None, f"'{path}' scales no observations (norm_obs is False); say --normalization {PLAIN}.")
    assert found is not None
    features = len(core.features)
    require(
        found.mean.shape == (features,),
        f"'{path}' scales {len(found.mean)} features, but this environment shows {features}.",
    )
    return found


# ---------------------------------------------------------------- checks


def _check_shapes(who: str, facts: Facts, core: EnvCore) -> None:
    spec, shows, sets = core.spec, (len(core.features),), (len(core.knobs),)
    require(
        facts.observations == shows,
        f"{who} was trained on observations of shape {facts.observations}, but signals '{spec.signals}' with knobs "
        f"'{spec.knobs}' have {shows}; name those that it was trained with.",
    )
    require(
        facts.actions == sets,
        f"{who} was trained on actions of shape {facts.actions}, but knobs '{spec.knobs}' have {sets}; name those that "
        "it was trained with.",
    )
    bounds = facts.action_bounds
    require(
        bounds in ((), (-1.0, 1.0)), f"{who} was trained on actions in {_range(bounds)}, but here they lie in [-1, 1]."
    )


def _check_scale(who: str, facts: Facts, options: ImportOptions) -> None:
    """Refuse a policy whose observations were scaled, unless it is said how."""
    said, bounds = bool(options.normalization), facts.observation_bounds
    require(
        said or bounds in ((), (-FEATURE_BOUND, FEATURE_BOUND)),
        f"{who} was trained on observations in {_range(bounds)}, but here they lie in [-{FEATURE_BOUND:g}, "
        f"{FEATURE_BOUND:g}]; give the statistics that scaled them as --normalization FILE --trust.",
    )
    require(
        said or not facts.normalized,
        f"{who} was trained under VecNormalize; give the statistics of its observations as --normalization FILE "
        f"--trust, or say --normalization {PLAIN} if it scaled rewards alone.",
    )


def _check_scaling(facts: Facts, *environments: Any) -> None:
    """Refuse a model in memory that was trained under a `VecNormalize` which none of the environments has."""
    has = any(isinstance(env, VecEnv) and unwrap_vec_normalize(env) is not None for env in environments)
    require(
        has or not facts.normalized,
        "The model was trained under VecNormalize; hand in the environment with that wrapper, also where it scaled "
        "rewards alone.",
    )


def _range(bounds: tuple[float, ...]) -> str:
    return f"[{', '.join(f'{one:g}' for one in bounds)}]"


def _observations(controller: LearnedController, count: int) -> Any:
    features = len(controller.blueprint.features)
    return np.random.default_rng(0).uniform(-1, 1, (count, features)).astype(np.float32)


def _try(controller: LearnedController, who: str) -> None:
    """Let a controller act on observations drawn at random, one by one and together."""
    seen = _observations(controller, 16)
    together, _ = controller.predict(seen)
    finite = bool(np.isfinite(together).all())
    require(finite, f"{who} answers observations in [-1, 1] with actions that are not finite.")
    single = np.stack([controller.predict(one)[0] for one in seen])
    require(
        bool(np.allclose(together, single, rtol=0, atol=1e-4)),
        f"{who} acts otherwise on several observations than on one: export it for batches of any size.",
    )
