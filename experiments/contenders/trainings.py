"""Several trainings of one learned controller, named together as `ppo:FOLDER,FOLDER` or `ppo:runs/digits__ppo__*`."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.bundle import load_controller
from agents.learned import LearnedController
from fl_core.base.errors import InputError, require


def training_folders(spec: str) -> list[Path]:
    """The folders that a spec names, those of a pattern in order of their names.

    Raises:
        InputError: it names none, a pattern that matches none, or one twice.
    """
    algorithm, _, text = spec.partition(":")
    folders: list[Path] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = sorted(glob.glob(part)) if glob.has_magic(part) and not Path(part).exists() else [part]
        require(bool(found), f"controller '{spec}' names '{part}', but no folder fits that.")
        folders += [Path(name) for name in found]
    require(bool(folders), f"controller '{spec}' names no folder; write {algorithm}:runs/NAME.")
    places = [folder.resolve() for folder in folders]
    twice = [str(folder) for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]
    require(not twice, f"controller '{spec}' names the training '{(twice or [''])[0]}' twice.")
    return folders


def load_trainings(spec: str) -> list[LearnedController]:
    """The trained controllers of a spec, which differ in their training seed alone.

    Raises:
        InputError: a folder holds no controller of the algorithm, or two of them are no trainings of one controller.
    """
    algorithm = spec.partition(":")[0]
    folders = training_folders(spec)
    trained = [load_controller(folder) for folder in folders]
    for folder, one in zip(folders, trained, strict=True):
        made = one.blueprint.algo
        require(made == algorithm, f"controller '{spec}' was trained with {made}; write {made}:{folder}.")
        _check_alike(spec, folder, one, trained[0])
    seeds = [str(one.blueprint.training.get("seed", "?")) for one in trained]
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    require(
        not twice,
        f"controller '{spec}' names two trainings with seed {(twice or [''])[0]}, but each needs a seed of its own.",
    )
    return trained


def _check_alike(spec: str, folder: Path, one: LearnedController, first: LearnedController) -> None:
    for name, mine, other in _differences(one, first):
        raise InputError(
            f"controller '{spec}' joins trainings, but '{folder}' was trained with {name} {_named(mine)}, the first "
            f"with {_named(other)}; name it as a controller of its own."
        )


def _named(value: Any) -> str:
    return "none" if value in ("", None) else str(value)


_OWN = ("seed", "executor", "parallel", "device", "memory_limit_mib", "data_root", "checkpoint_every")
"""What trainings of one controller may differ in: their seed, and where they ran."""


def _differences(one: LearnedController, first: LearnedController) -> list[tuple[str, Any, Any]]:
    """Settings that two trainings differ in beside their seeds: name, value of the one, value of the first."""
    mine, theirs = (_settings_of(each) for each in (one, first))
    return [
        (name, mine.get(name), theirs.get(name))
        for name in {**mine, **theirs}
        if mine.get(name) != theirs.get(name) and name not in _OWN
    ]


def _settings_of(trained: LearnedController) -> dict[str, Any]:
    """Environment, learning options, length and code of a training."""
    about = trained.blueprint.training
    kept = {name: about.get(name) for name in ("episodes", "code")}
    # The learning rate of the federation has the same name as that of the agent.
    agent = {f"agent {name}": value for name, value in about.get("config", {}).items() if name not in _OWN}
    return {**agent, **trained.blueprint.arguments, **trained.blueprint.settings, **kept}


def training_names(trained: Sequence[LearnedController]) -> tuple[str, ...]:
    """What tells the trainings apart."""
    return tuple(f"seed {one.blueprint.training.get('seed', '?')}" for one in trained)


def common_label(trained: Sequence[LearnedController]) -> str:
    """A name for all of them, as `PPO (3 seeds)`."""
    first = trained[0]
    return first.label if len(trained) == 1 else f"{first.blueprint.algo.upper()} ({len(trained)} seeds)"
