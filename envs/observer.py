"""What a controller sees of a batch: features of the figures of the last decision, and its own last actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.knobs import Knob
from envs.signals import FEATURE_BOUND, NOISE_LEVEL, ROUND_FRACTION, SIGNAL, Feature, last_action
from fl_core.run.evaluation import EVALUATED
from fl_core.run.plan import BoolArray, FloatArray


class Observer:
    """Observations of a batch of runs.

    Attributes:
        needs_evaluation: True if a feature is an accuracy or a loss.
    """

    def __init__(self, runs: int, knobs: Sequence[Knob], features: Sequence[Feature]):
        """Watch `runs` runs by these features."""
        self._knobs, self._features = knobs, features
        self.needs_evaluation = any(feature.figure in EVALUATED for feature in features)
        self._figures: dict[str, FloatArray] = {feature.figure: np.full(runs, np.nan) for feature in features}
        self._actions = np.zeros((runs, len(knobs)))
        self._observation = np.zeros((runs, len(features)), dtype=np.float32)

    @property
    def observation(self) -> NDArray[np.float32]:
        """Copy of the observations of all runs `[runs, features]`."""
        return self._observation.copy()

    def begin(self, rows: Sequence[int], known: Mapping[str, FloatArray]) -> None:
        """Forget all that was seen of some rows, and note the figures `[runs]` known before their first round."""
        for row in rows:
            self._actions[row] = [knob.encode(knob.default) for knob in self._knobs]
            for name, values in self._figures.items():
                values[row] = known[name][row] if name in known else np.nan

    def note_actions(self, values: Sequence[FloatArray], rows: BoolArray) -> None:
        """Note the decoded values of each knob `[runs]` as the last actions of some runs."""
        for column, (knob, value) in enumerate(zip(self._knobs, values, strict=True)):
            self._actions[rows, column] = knob.encode(value)[rows]

    def note_figures(self, figures: Mapping[str, FloatArray], rows: BoolArray) -> None:
        """Note those of the figures `[runs]` that features are made of, for some runs."""
        for name, values in self._figures.items():
            if name in figures:
                self._figures[name] = np.where(rows, figures[name], values)

    def observe(self, rows: Sequence[int], done: FloatArray, noise_multipliers: FloatArray) -> None:
        """Make the observations of some rows anew.

        Args:
            rows: places of the runs.
            done: rounds done by each run over its T `[runs]`.
            noise_multipliers: those of the runs' uniform schedules `[runs]`.
        """
        values = dict(self._figures)
        values[ROUND_FRACTION] = done
        values[NOISE_LEVEL] = noise_multipliers
        if SIGNAL in values:
            with np.errstate(divide="ignore"):
                values[SIGNAL] = values[SIGNAL] / noise_multipliers
        for i, knob in enumerate(self._knobs):
            values[last_action(knob.name)] = self._actions[:, i]
        for column, feature in enumerate(self._features):
            value = values[feature.figure]
            scaled = np.where(np.isnan(value), feature.before_first_round, feature.scale(value))
            bounded = np.minimum(np.maximum(scaled, -FEATURE_BOUND), FEATURE_BOUND)  # several times faster than np.clip
            self._observation[rows, column] = np.where(np.isnan(bounded), 0.0, bounded)[rows]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return its arrays by name, `[runs, ...]` each."""
        figures = {f"figures.{name}": value for name, value in self._figures.items()}
        return figures | {"actions": self._actions, "observation": self._observation}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue where `state_dict` was taken; other arrays are ignored."""
        self._figures = {name: arrays[f"figures.{name}"] for name in self._figures}
        self._actions, self._observation = arrays["actions"], arrays["observation"]
