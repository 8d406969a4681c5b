"""Description of a trained controller apart from its weights, and the environments that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy

from agents.algorithms import ALGORITHMS
from agents.exported import ExportedPolicy
from agents.formats import EXPORTED
from envs import ControlLoop, EnvCore
from envs.faces import cores, require_own_spaces
from fl_core.base.errors import InputError, require

VIEW = ("knobs", "signals", "decision_rounds")
"""Environment settings that a controller depends on; the rest is the problem it is set to."""
FORMER = {"context": "hidden", "population": "all"}
"""Values of settings for controllers that were saved before these existed; later defaults do not change them."""
KNOB_FIELDS = ("name", "low", "high", "scale")


@dataclass(frozen=True)
class Blueprint:
    """A controller without its weights; all values are JSON-able.

    Attributes:
        algo: learning algorithm, a name of `ALGORITHMS`, or format of a policy that was exported, one of `EXPORTED`.
        arguments: arguments of its policy.
        features: names of the observation's entries, in order.
        feature_bound: observations lie in [-feature_bound, feature_bound].
        knobs: name, range and scale of what each action coordinate sets.
        settings: keyword arguments of the environment it was trained in.
        training: seeds, instances, cost in federated rounds and validation of the training; a cost of None is unknown.
        scales: how each feature is scaled, in words; () where that was not recorded.
    """

    algo: str
    arguments: Mapping[str, Any]
    features: tuple[str, ...]
    feature_bound: float
    knobs: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    training: Mapping[str, Any]
    scales: tuple[str, ...] = ()

    @property
    def observation_space(self) -> spaces.Box:
        """Space of one observation."""
        return spaces.Box(-self.feature_bound, self.feature_bound, (len(self.features),), np.float32)

    @property
    def action_space(self) -> spaces.Box:
        """Space of one action."""
        return spaces.Box(-1.0, 1.0, (len(self.knobs),), np.float32)

    def make_policy(self) -> BasePolicy | ExportedPolicy:
        """Make an untrained policy of this kind."""
        make = EXPORTED[self.algo] if self.algo in EXPORTED else ALGORITHMS[self.algo].policy
        return make(self.observation_space, self.action_space, self.arguments)

    @property
    def label(self) -> str:
        """Readable name of the algorithm or the format."""
        return EXPORTED[self.algo].load().label if self.algo in EXPORTED else ALGORITHMS[self.algo].label

    @property
    def origin(self) -> str:
        """Tell it apart from others of its kind: seed of the training, or name that it was imported by."""
        imported = self.training.get("imported")
        return f"seed {self.training.get('seed', '?')}" if imported is None else str(imported["name"])

    def check(self, env: Any) -> None:
        """Refuse an environment or a control loop whose observations or actions mean something else.

        Raises:
            InputError: there is such a difference, in one environment of a vector at least.
        """
        if isinstance(env, ControlLoop):
            self._check_core(env)
            return
        for core in cores_of(env):
            self._check_core(core)
            require_own_spaces(env, core)

    def _check_core(self, core: EnvCore | ControlLoop) -> None:
        who = f"this {self.algo} controller"
        shown, known = [feature.name for feature in core.features], list(self.features)
        require(
            shown == known,
            f"{who} was trained on the signals {', '.join(known)}, but the environment shows {', '.join(shown)}.",
        )
        scales = [feature.scaled for feature in core.features]
        for name, scale, trained in zip(known, scales, self.scales, strict=False):
            require(
                scale == trained, f"{who} was trained on {name} scaled as {trained}, but the environment shows {scale}."
            )
        has, sets = list(knob_records(core)), [dict(knob) for knob in self.knobs]
        require(
            has == sets, f"{who} was trained to set {_ranges(sets)}, but the environment's knobs are {_ranges(has)}."
        )
        rounds = self.settings["decision_rounds"]
        require(
            core.spec.decision_rounds == rounds,
            f"{who} decides every {rounds} rounds, but decision_rounds of the environment is "
            f"{core.spec.decision_rounds}.",
        )


def knob_records(core: EnvCore | ControlLoop) -> tuple[dict[str, Any], ...]:
    """Name, range and scale of an environment's knobs, as far as a controller must agree on them."""
    return tuple({field: getattr(knob, field) for field in KNOB_FIELDS} for knob in core.knobs)


def cores_of(env: Any) -> list[EnvCore | ControlLoop]:
    """Find the cores of any face of an environment, wrapped or not, or of a vector of faces, in any process.

    A control loop of a run that is no simulation is its own.

    Raises:
        InputError: there is no DPilot environment in it.
    """
    found = cores(env)
    if not all(isinstance(core, (EnvCore, ControlLoop)) for core in found):
        raise InputError(f"A {type(env).__name__} is no DPilot environment.")
    return found


def core_of(env: Any) -> EnvCore:
    """Find the core of an environment, the first one's of a vector.

    Raises:
        InputError: there is no DPilot environment in it.
    """
    found = cores_of(env)[0]
    if not isinstance(found, EnvCore):
        raise InputError(f"A {type(env).__name__} is no DPilot environment.")
    return found


def _ranges(knobs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{knob['name']} from {knob['low']:g} to {knob['high']:g} ({knob['scale']})" for knob in knobs)
