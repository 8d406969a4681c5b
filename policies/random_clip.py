"""Random control, the floor that every controller has to beat."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from envs.knobs import NO_KNOBS
from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np
from policies.base import Controller, State
from policies.constant import base_knobs
from policies.parameters import WHOLE, Parameter
from policies.view import Seen


class RandomControl(Controller):
    """Draws every knob uniformly over its action coordinate in every decision.

    A draw is a function of (SEED, row of the batch, episode of the row, round), so nothing has to be reset: the same
    seed gives the same episode in the same row. Episodes of a row are counted in the state that `predict` returns;
    a caller that does not hand it back gets each row's first episode again, as `decide` does.
    """

    name = "random"
    summary = "every knob uniform over its range, anew in every decision; the clip norm, or the knobs named"
    needed_knobs = NO_KNOBS
    usual_knobs = "clip_norm"
    parameters = (Parameter("seed", "seed of its own draws", 0.0, allowed=WHOLE),)
    label_format = "random (seed {seed:.0f})"
    takes_knobs = True

    @classmethod
    @override
    def usage(cls) -> str:
        return f"{cls.name}[:SEED[:KNOB,KNOB]]"

    @property
    @override
    def label(self) -> str:
        drawn = base_knobs([knob.name for knob in self.view.knobs])
        label = super().label
        return label if drawn == self.usual_knobs else label.replace("random", f"random {drawn.replace(',', ', ')}", 1)

    @override
    def _next_state(self, state: State | None, episode_start: NDArray[Any] | None, seen: Seen) -> State | None:
        if state is None:
            return (np.zeros(len(seen), dtype=np.int64),)
        begins = np.zeros(len(seen), dtype=bool) if episode_start is None else np.asarray(episode_start, dtype=bool)
        return (state[0] + begins,)

    @override
    def _coordinates(self, seen: Seen, state: State | None) -> FloatArray:
        episodes = np.zeros(len(seen), dtype=np.int64) if state is None else state[0]
        seed = int(self.values["seed"])
        keys = zip(range(len(seen)), episodes.tolist(), seen.round.tolist(), strict=True)
        return np.stack([np.random.default_rng([seed, *key]).uniform(-1, 1, len(self.view.knobs)) for key in keys])

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        coordinates = self._coordinates(seen, None)
        return {knob.name: knob.decode(coordinates[:, i]) for i, knob in enumerate(self.view.knobs)}
