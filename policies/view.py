"""View of an environment that hand-coded controllers are made for, and observations read by feature name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from envs.faces import cores, require_own_spaces
from envs.knobs import PER_LAYER, Knob
from envs.signals import NOISE_LEVEL, ROUND_FRACTION, Feature, last_action
from fl_core.base.arrays import FloatArray
from fl_core.base.errors import InputError, require
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np

CLIP_NORM = "clip_norm"
MULTIPLES = "clip_calibrated"
"""Knob that sets the clip norm as a multiple of the calibrated length of an update."""


def _unknown_noise(epsilon: float) -> float:
    return math.nan


@dataclass(frozen=True)
class View:
    """The names and sizes that an environment shows a controller.

    Attributes:
        knobs: knob of each action coordinate.
        features: feature of each observation entry.
        rounds: communication rounds T of an episode.
        decision_rounds: rounds that one decision lasts.
        layer_sizes: parameters of each of the model's layers, by name.
        noise_at: noise multiplier of this run's uniform schedule at another ε.
        in_multiples: True if clip norms are multiples of the calibrated length of an update.
        one_length: True if all episodes have T rounds; otherwise T is that of the longest.
        others: knobs that other controllers set at the same time; their last values can be read.
    """

    knobs: tuple[Knob, ...]
    features: tuple[Feature, ...]
    rounds: int
    decision_rounds: int = 1
    layer_sizes: Mapping[str, int] = field(default_factory=dict)
    noise_at: Callable[[float], float] = field(default=_unknown_noise, compare=False)
    in_multiples: bool = False
    one_length: bool = True
    others: tuple[Knob, ...] = ()

    @classmethod
    def of(cls, env: Any) -> View:
        """Take the view of an environment: any face, wrapped or not, its core, or a vector of faces.

        Raises:
            InputError: there is no DPilot environment in it, those of a vector differ, or wrappers change the numbers
                that are seen or set.
        """
        if isinstance(env, View):
            return env
        first, *others = [cls._of_core(env, core) for core in cores(env)]
        for other in others:
            first.require_same(other, "The first environment of the vector")
        return first

    @classmethod
    def _of_core(cls, env: Any, core: Any) -> View:
        try:
            view = cls(
                tuple(core.knobs),
                tuple(core.features),
                core.longest,
                core.spec.decision_rounds,
                {span.name: span.stop - span.start for span in core.layout.layers},
                core.noise_at,
                one_length=not core.setting.rounds_vary,
            )
        except AttributeError as error:
            raise InputError(f"A {type(env).__name__} is no DPilot environment.") from error
        require_own_spaces(env, core)
        return view

    def with_multiples(self) -> View:
        """Return the view in which the knob of multiples has the name of the clip norm, so that every rule can set it.

        Raises:
            InputError: the environment has no such knob.
        """
        if self.in_multiples:
            return self
        self.column(last_action(MULTIPLES))
        knobs = tuple(replace(one, name=CLIP_NORM) if one.name == MULTIPLES else one for one in self.knobs)
        names = {last_action(MULTIPLES): last_action(CLIP_NORM)}
        features = tuple(replace(one, name=names.get(one.name, one.name)) for one in self.features)
        return replace(self, knobs=knobs, features=features, in_multiples=True)

    def limited(self, names: Collection[str]) -> View:
        """Return the view of a controller that sets these knobs alone, beside others; names are without layers."""
        own = tuple(one for one in self.knobs if one.name.partition(PER_LAYER)[0] in names)
        others = tuple(one for one in self.knobs if one not in own)
        return replace(self, knobs=own, others=others, in_multiples=self.in_multiples and CLIP_NORM in names)

    def require_same(self, other: View, who: str) -> None:
        """Refuse the view of another environment that shows or takes something else.

        Args:
            other: the view to compare.
            who: subject of the sentence, made for this view.

        Raises:
            InputError: knobs, features, rounds or layers differ.
        """
        other = other.with_multiples() if self.in_multiples else other
        for name, read in _COMPARED.items():
            own, has = read(self), read(other)
            require(own == has, f"{who} is made for {name} {_words(own)}, but the environment has {_words(has)}.")

    @property
    def last_decision(self) -> int:
        """Round of the last decision of an episode, counted from 0."""
        return (self.rounds - 1) // self.decision_rounds * self.decision_rounds

    def knob(self, name: str) -> Knob | None:
        """Find a knob by name, whoever sets it; None where the environment lacks it."""
        return next((knob for knob in (*self.knobs, *self.others) if knob.name == name), None)

    def knobs_of(self, name: str) -> tuple[Knob, ...]:
        """Find the knob of a name, or those of all layers where it has one per layer."""
        return tuple(knob for knob in self.knobs if name in (knob.name, knob.name.partition(PER_LAYER)[0]))

    def column(self, feature: str) -> int:
        """Find the place of a feature in the observation.

        Raises:
            InputError: the environment does not show it.
        """
        names = [one.name for one in self.features]
        if feature not in names:
            raise InputError(f"signal '{feature}' is not among those of this environment: {', '.join(names)}.")
        return names.index(feature)


_COMPARED: dict[str, Callable[[View], Any]] = {
    "the knobs": lambda view: [
        f"{one.name} from {one.low:g} to {one.high:g} ({one.scale}, default {one.default:g})" for one in view.knobs
    ],
    "the signals": lambda view: [f"{one.name} ({one.scaled})" for one in view.features],
    "rounds": lambda view: view.rounds,
    "decision_rounds": lambda view: view.decision_rounds,
    "the layers": lambda view: [f"{name} ({size} parameters)" for name, size in view.layer_sizes.items()],
}
"""Parts of a view that a controller depends on, as texts and numbers."""


def _words(part: Any) -> str:
    return (", ".join(part) or "none") if isinstance(part, list) else str(part)


class Seen:
    """A batch of observations, read by feature name and converted back to the metrics' own units."""

    def __init__(self, view: View, observations: FloatArray):
        """Wrap observations `[n, features]`."""
        self._view = view
        self._observations = observations

    def __len__(self) -> int:
        return len(self._observations)

    def feature(self, name: str) -> FloatArray:
        """Read a feature `[n]` as the environment scales it."""
        return self._observations[:, self._view.column(name)]

    @property
    def round(self) -> NDArray[np.int64]:
        """Rounds done so far `[n]`: 0 at the first decision."""
        share = (self.feature(ROUND_FRACTION) + 1) / 2
        return np.rint(np.clip(share, 0.0, 1.0) * self._view.rounds).astype(np.int64)

    @property
    def progress(self) -> FloatArray:
        """Progress `[n]`, linear in rounds: 0 at the first decision, 1 at the last; 0 where there is only one."""
        return np.clip(self.round / max(self._view.last_decision, 1), 0.0, 1.0)

    @property
    def noise_multiplier(self) -> FloatArray:
        """σ of the run's uniform schedule `[n]`."""
        return np.asarray(10.0 ** (2 * self.feature(NOISE_LEVEL)))

    def last(self, knob: Knob) -> FloatArray:
        """Read the value `[n]` that a knob had in the decision before; its default at the first."""
        return knob.decode(self.feature(last_action(knob.name)))
