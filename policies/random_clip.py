"""Random control: what any controller has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.knobs import NO_KNOBS
from policies.base import Controller, State
from policies.constant import base_knobs
from policies.parameters import WHOLE, Parameter
from policies.view import FloatArray, Seen


class RandomControl(Controller):
    """Every knob uniform over its action coordinate in every decision.

    A draw is a function of (SEED, row of the batch, episode of the row, round), so nothing has to be reset: the same
    seed gives the same episode in the same row. Episodes of a row are counted in the state that `predict` returns;
    whoever does not hand it back gets each row's first episode again.
    """

    name = "random"
    summary = "every knob uniform over its range, anew in every decision; the clip norm, or the knobs named"
    needed_knobs = NO_KNOBS
    usual_knobs = "clip_norm"
    parameters = (Parameter("seed", "seed of its own draws", 0.0, allowed=WHOLE),)
    label_format = "random (seed {seed:.0f})"
    takes_knobs = True

    @classmethod
    def usage(cls) -> str:
        """How it is written in a spec: with the knobs that it draws, if they are not the clip norm alone."""
        return f"{cls.name}[:SEED[:KNOB,KNOB]]"

    @property
    def label(self) -> str:
        """As in `Controller`."""
        drawn = base_knobs([knob.name for knob in self.view.knobs])
        label = super().label
        return label if drawn == self.usual_knobs else label.replace("random", f"random {drawn.replace(',', ', ')}", 1)

    def _next_state(self, state: State | None, episode_start: NDArray[Any] | None, seen: Seen) -> State | None:
        if state is None:
            return (np.zeros(len(seen), dtype=np.int64),)
        begins = np.zeros(len(seen), dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        return (state[0] + begins,)

    def _coordinates(self, seen: Seen, state: State | None) -> FloatArray:
        episodes = np.zeros(len(seen), dtype=np.int64) if state is None else state[0]
        seed = int(self.values["seed"])
        keys = zip(range(len(seen)), episodes.tolist(), seen.round.tolist(), strict=True)
        return np.stack([np.random.default_rng([seed, *key]).uniform(-1, 1, len(self.view.knobs)) for key in keys])

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`, for the first episode of each row."""
        coordinates = self._coordinates(seen, None)
        return {knob.name: knob.decode(coordinates[:, i]) for i, knob in enumerate(self.view.knobs)}
