"""Schedules: controllers that depend on nothing but the round."""

from __future__ import annotations

import numpy as np

from envs.knobs import NO_KNOBS
from policies.base import Controller, State
from policies.parameters import ANCHOR, KNOB, Parameter
from policies.view import FloatArray, Seen


def geometric(start: float, end: float, progress: FloatArray) -> FloatArray:
    """start^(1 - p) end^p at progress p in [0, 1]."""
    return np.asarray(start * (end / start) ** progress, dtype=np.float64)


class FixedClip(Controller):
    """C_t = C. Without a number, the clip norm that someone who has tuned nothing would take."""

    name = "fixed"
    summary = "one clip norm for all rounds"
    parameters = (Parameter("clip_norm", "clip norm C", 1.0, KNOB, knob="clip_norm"),)
    label_format = "fixed {clip_norm:.3g}"

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        return {"clip_norm": np.full(len(seen), self.values["clip_norm"])}


class BestFixedClip(FixedClip):
    """`fixed` at the anchor C*, which a search on training instances has found."""

    name = "best-fixed"
    summary = "one clip norm for all rounds, the best in hindsight on training instances"
    parameters = (Parameter("clip_norm", "clip norm C* found by the search", 1.0, ANCHOR, knob="clip_norm"),)
    tuned = True
    label_format = "best fixed {clip_norm:.3g}"


class NoControl(Controller):
    """Sets nothing: for methods without knobs, and for uncontrolled runs."""

    name = "none"
    summary = "sets nothing; for methods without a clip norm"
    needed_knobs = NO_KNOBS
    needed_features = ()
    label_format = "no control"

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        return {}

    def _coordinates(self, seen: Seen, state: State | None) -> FloatArray:
        return np.zeros((len(seen), 0)) if not self.view.knobs else super()._coordinates(seen, state)


_DECAY = (
    Parameter("start", "clip norm of the first round", 2.0, ANCHOR, knob="clip_norm"),
    Parameter("end", "clip norm of the last round", 0.5, ANCHOR, knob="clip_norm"),
)


class ExponentialDecay(Controller):
    """C_t = START (END/START)^p, with p from 0 at the first decision to 1 at the last."""

    name = "exponential-decay"
    summary = "clip norm from START to END, by the same factor in every round"
    parameters = _DECAY
    label_format = "exponential decay {start:.3g} to {end:.3g}"

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        return {"clip_norm": geometric(self.values["start"], self.values["end"], seen.progress)}


class LinearDecay(Controller):
    """C_t = START + (END - START) p, with p from 0 at the first decision to 1 at the last."""

    name = "linear-decay"
    summary = "clip norm from START to END, by the same step in every round"
    parameters = _DECAY
    label_format = "linear decay {start:.3g} to {end:.3g}"

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        start, end = self.values["start"], self.values["end"]
        return {"clip_norm": start + (end - start) * seen.progress}


class ServerLearningRateDecay(Controller):
    """C_t = C and server learning rate END^p: a decay that costs neither privacy nor a search for a schedule of C.

    The control that any schedule of the clip norm must be held against: late in a run, where the noise dominates, a
    smaller clip norm and a smaller server learning rate both do little more than shrink the step.
    """

    name = "server-lr-decay"
    summary = "fixed clip norm; server learning rate from 1 to END, by the same factor in every round"
    parameters = (
        # Twice the anchor: the step then falls from 2 C* to C*/2, as that of the decaying clip norms.
        Parameter("clip_norm", "clip norm C", 2.0, ANCHOR, knob="clip_norm"),
        Parameter("end", "server learning rate of the last round", 0.25, knob="server_learning_rate"),
    )
    needed_knobs = "clip_norm,server_learning_rate"
    label_format = "server learning rate decay to {end:.3g}, clip {clip_norm:.3g}"

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        return {
            "clip_norm": np.full(len(seen), self.values["clip_norm"]),
            "server_learning_rate": geometric(1.0, self.values["end"], seen.progress),
        }
