"""Several trainings of one learned controller, named together as `ppo:FOLDER,FOLDER` or `ppo:runs/digits__ppo__*`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.bundle import load_controller
from agents.folders import is_pretrained
from agents.learned import LearnedController
from envs import EnvCore, Setting
from envs.acting import Policy
from experiments.contenders.environments import Environments
from experiments.contenders.prior import prior_rounds, spread_evenly
from experiments.contenders.specs import training_folders
from experiments.records.costs import PriorRounds
from fl_core.base.errors import InputError, require


@dataclass(frozen=True)
class Trainings:
    """Saved trainings of one learned controller, at least one.

    Attributes:
        controllers: one per training.
        pretrained: name of the one that comes with the package; empty for others.
    """

    controllers: tuple[LearnedController, ...]
    pretrained: str = ""

    @property
    def first(self) -> LearnedController:
        """The first training, to read off what all of them share."""
        return self.controllers[0]

    @property
    def builds(self) -> tuple[Callable[[EnvCore], Policy], ...]:
        """Builders, one per training: each returns its policy, or refuses an environment it was not trained for."""
        return tuple(_checked(one) for one in self.controllers)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each training, as `seed 3`, or the name that it was imported by."""
        return tuple(one.blueprint.origin for one in self.controllers)

    @property
    def label(self) -> str:
        """Joint label, as `PPO (3 seeds)`."""
        if self.pretrained:
            return f"pretrained {self.pretrained}"
        count = len(self.controllers)
        return self.first.label if count == 1 else f"{self.first.blueprint.algo.upper()} ({count} seeds)"

    @property
    def rounds(self) -> int | None:
        """Federated rounds that they took together; None where that of one is unknown."""
        counts = [one.training_rounds for one in self.controllers]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def words(self) -> str:
        """The instances that trained and chose them, in words."""
        count = len(self.controllers)
        return self.first.trained_on if count == 1 else f"{count} trainings: {self.first.trained_on}"

    def differences(self, here: Setting) -> list[str]:
        """List the differences between the setting they were trained in and the one they are to act in, in words.

        Args:
            here: the setting in which they are to act. One that comes with the package was made for others.
        """
        if self.pretrained:
            return []
        try:
            own = Setting.from_record(self.first.blueprint.settings).as_record()
        except InputError:  # of a task that is no longer there
            own = dict(self.first.blueprint.settings)
        record = here.as_record()
        met, meets = (str(one.get("generator") or "their seeds alone") for one in (own, record))
        found = [f"where instances differ in {met}, not {meets}"] if met != meets else []
        for name in ("task", "dataset", "model", "method", "epsilon", "delta", "rounds", "clients", "sampling_rate"):
            if name in own and own[name] != record[name]:
                found.append(f"with {name} {own[name]}, not {record[name]}")
        name, shown = "telemetry_share", self.first.view["signals"] == "accounted"
        if shown and own.get(name) != record[name]:  # which sets the noise of what it sees
            found.append(f"with {name} {own.get(name)}, not {record[name]}")
        return found

    def releases(self, environments: Environments) -> tuple[PriorRounds, ...]:
        """List the releases of their training rounds, in the settings they were trained in; () where these are lost.

        How often a training met each of its instances is not kept, so they count evenly. A run that ended early counts
        as a whole one, for its controller may have spent all the budget by then.
        """
        if self.rounds is None:
            return ()
        total: Counter[int] = Counter()
        for one in self.controllers:
            about = one.blueprint.training
            validation, played = about.get("validation_instances", []), about.get("train_instances", [])
            released = about.get("released", about["cost"])
            validated = released.get("validation", 0)
            total.update(spread_evenly(validated, validation or played or [0]))
            total.update(spread_evenly(sum(released.values()) - validated, played or validation or [0]))
        try:
            trained_in = Setting.from_record(self.first.blueprint.settings)
            core = environments.of(trained_in.replace(reward="final-accuracy", executor="sequential", device="cpu"))
        except InputError:
            return ()
        return prior_rounds(core, total)


def _checked(controller: LearnedController) -> Callable[[EnvCore], Policy]:
    def build(target: EnvCore) -> Policy:
        controller.check(target)
        return controller

    return build


def load_trainings(spec: str) -> Trainings:
    """Load the trained controllers of a spec, which differ in their training seed alone.

    Raises:
        InputError: a folder holds no controller of the algorithm, or two of them are no trainings of one controller.
    """
    algorithm, _, name = spec.partition(":")
    folders = training_folders(spec)
    trained = [load_controller(folder) for folder in folders]
    if is_pretrained(spec):
        return Trainings(tuple(trained), name.strip())
    for folder, one in zip(folders, trained, strict=True):
        made = one.blueprint.algo
        require(made == algorithm, f"controller '{spec}' was trained with {made}; write {made}:{folder}.")
        _check_alike(spec, folder, one, trained[0])
    names = [one.blueprint.origin for one in trained]
    twice = [name for name in names if names.count(name) > 1]
    require(
        not twice,
        f"controller '{spec}' names two trainings with {(twice or [''])[0]}, but each needs a seed of its own.",
    )
    return Trainings(tuple(trained))


def _check_alike(spec: str, folder: Path, one: LearnedController, first: LearnedController) -> None:
    for name, mine, other in _differences(one, first):
        raise InputError(
            f"controller '{spec}' joins trainings, but '{folder}' was trained with {name} {_named(mine)}, the first "
            f"with {_named(other)}; name it as a controller of its own."
        )


def _named(value: Any) -> str:
    return "none" if value in ("", None) else str(value)


_OWN = (
    "seed",
    "executor",
    "parallel",
    "device",
    "memory_limit_mib",
    "image_memory_mib",
    "data_root",
    "checkpoint_every",
)
"""Settings in which trainings of one controller may differ: their seed, and where they ran."""


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
