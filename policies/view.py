"""What a hand-coded controller knows of its environment, and how it reads an observation by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.faces import innermost
from envs.knobs import PER_LAYER, Knob
from envs.signals import NOISE_LEVEL, ROUND_FRACTION, Feature, last_action
from fl_core.base.errors import InputError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """The names and sizes that an environment shows a controller.

    Attributes:
        knobs: what each action coordinate sets.
        features: what each observation entry is.
        rounds: communication rounds T of an episode.
        decision_rounds: rounds that one decision lasts.
        layer_sizes: parameters of each of the model's layers, by name.
        noise_at: noise multiplier of the uniform schedule at an ε, else as this run.
    """

    knobs: tuple[Knob, ...]
    features: tuple[Feature, ...]
    rounds: int
    decision_rounds: int = 1
    layer_sizes: Mapping[str, int] = field(default_factory=dict)
    noise_at: Callable[[float], float] = field(default=lambda _: math.nan, compare=False)

    @classmethod
    def of(cls, env: Any) -> View:
        """The view of any face of an environment, wrapped or not, of its core, or of a `DummyVecEnv` of them.

        Raises:
            InputError: there is no DPilot environment in it.
        """
        if isinstance(env, View):
            return env
        core = innermost(env)
        try:
            federation = core.federation
            return cls(
                tuple(core.knobs),
                tuple(core.features),
                federation.config.rounds,
                core.spec.decision_rounds,
                {span.name: span.stop - span.start for span in federation.model.layers},
                federation.noise_at(0),
            )
        except AttributeError as error:
            raise InputError(f"A {type(env).__name__} is no DPilot environment.") from error

    @property
    def last_decision(self) -> int:
        """Round at which the last decision of an episode is taken, counted from 0."""
        return (self.rounds - 1) // self.decision_rounds * self.decision_rounds

    def knob(self, name: str) -> Knob | None:
        """The knob of a name, or None where the environment lacks it."""
        return next((knob for knob in self.knobs if knob.name == name), None)

    def knobs_of(self, name: str) -> tuple[Knob, ...]:
        """The knob of a name, or those of all layers where it has one per layer."""
        return tuple(knob for knob in self.knobs if name in (knob.name, knob.name.partition(PER_LAYER)[0]))

    def column(self, feature: str) -> int:
        """Place of a feature in the observation.

        Raises:
            InputError: the environment does not show it.
        """
        names = [one.name for one in self.features]
        if feature not in names:
            raise InputError(f"signal '{feature}' is not among those of this environment: {', '.join(names)}.")
        return names.index(feature)


class Seen:
    """A batch of observations, read by name and in the units of the figures behind the features."""

    def __init__(self, view: View, observations: FloatArray):
        """Wrap observations `[n, features]`."""
        self._view = view
        self._observations = observations

    def __len__(self) -> int:
        return len(self._observations)

    def feature(self, name: str) -> FloatArray:
        """A feature as the environment scales it `[n]`."""
        return self._observations[:, self._view.column(name)]

    @property
    def round(self) -> NDArray[np.int64]:
        """Rounds done so far `[n]`: 0 at the first decision."""
        share = (self.feature(ROUND_FRACTION) + 1) / 2
        return np.rint(np.clip(share, 0.0, 1.0) * self._view.rounds).astype(np.int64)

    @property
    def progress(self) -> FloatArray:
        """0 at the first decision of an episode, 1 at the last, linear in rounds `[n]`; 0 where there is only one."""
        return np.clip(self.round / max(self._view.last_decision, 1), 0.0, 1.0)

    @property
    def noise_multiplier(self) -> FloatArray:
        """σ of the run's uniform schedule `[n]`."""
        return np.asarray(10.0 ** (2 * self.feature(NOISE_LEVEL)))

    def last(self, knob: Knob) -> FloatArray:
        """Value that a knob had in the decision before; its default at the first `[n]`."""
        return knob.decode(self.feature(last_action(knob.name)))
