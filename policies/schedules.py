"""Schedules: controllers that read nothing but the round."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from envs.knobs import NO_KNOBS
from fl_core.base.arrays import FloatArray
from fl_core.base.errors import require
from fl_core.base.libraries import numpy as np
from policies.base import Controller
from policies.parameters import ANCHOR, COUNT, KNOB, NOT_NEGATIVE, Parameter
from policies.view import Seen, View


def geometric(start: float, end: float, progress: FloatArray) -> FloatArray:
    """Interpolate geometrically: start^(1 - p) end^p at progress p in [0, 1]."""
    return np.asarray(start * (end / start) ** progress, dtype=np.float64)


class FixedClip(Controller):
    """C_t = C, by default the task's clip norm: the choice of somebody who has tuned nothing."""

    name = "fixed"
    summary = "one clip norm for all rounds"
    parameters = (Parameter("clip_norm", "clip norm C", 1.0, KNOB, knob="clip_norm"),)
    label_format = "fixed {clip_norm:.3g}"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {"clip_norm": np.full(len(seen), self.values["clip_norm"])}


class BestFixedClip(FixedClip):
    """C_t = C*, the anchor that a search on training instances has found."""

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

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {}


_SLACK = 1e-9
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

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {"clip_norm": geometric(self.values["start"], self.values["end"], seen.progress)}


class LinearDecay(Controller):
    """C_t = START + (END - START) p, with p from 0 at the first decision to 1 at the last."""

    name = "linear-decay"
    summary = "clip norm from START to END, by the same step in every round"
    parameters = _DECAY
    label_format = "linear decay {start:.3g} to {end:.3g}"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        start, end = self.values["start"], self.values["end"]
        return {"clip_norm": start + (end - start) * seen.progress}


class CosineDecay(Controller):
    """C_t = END + (START - END)(1 + cos πp)/2, with p from 0 at the first decision to 1 at the last."""

    name = "cosine-decay"
    summary = "clip norm from START to END along half a cosine: slowly at first and at last"
    parameters = _DECAY
    label_format = "cosine decay {start:.3g} to {end:.3g}"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        start, end = self.values["start"], self.values["end"]
        return {"clip_norm": end + (start - end) * (1 + np.cos(np.pi * seen.progress)) / 2}


class StepDecay(Controller):
    """C_t = START (END/START)^(k/STEPS), k = ⌊(STEPS + 1) p⌋ at most STEPS: equally long plateaus, equal factors."""

    name = "step-decay"
    summary = "clip norm from START to END in STEPS equal factors, kept for equally long between them"
    parameters = (
        *_DECAY,
        Parameter("steps", "number of changes of the clip norm", 3.0, allowed=COUNT, search=(1.0, 3.0)),
    )
    label_format = "step decay {start:.3g} to {end:.3g} in {steps:.0f}"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        steps = self.values["steps"]
        done = np.minimum(np.floor((steps + 1) * seen.progress + _SLACK), steps)
        return {"clip_norm": geometric(self.values["start"], self.values["end"], done / steps)}


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
        Parameter(
            "end",
            "server learning rate of the last round",
            0.25,
            knob="server_learning_rate",
            search=(0.06, 0.12, 0.25, 0.5),
        ),
    )
    needed_knobs = "clip_norm,server_learning_rate"
    label_format = "server learning rate decay to {end:.3g}, clip {clip_norm:.3g}"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {
            "clip_norm": np.full(len(seen), self.values["clip_norm"]),
            "server_learning_rate": geometric(1.0, self.values["end"], seen.progress),
        }


class TailAverage(Controller):
    """C_t = C, and what is tested is the mean of the server's models of the last LAST rounds.

    The running average takes round t, from 1 to T, in with the weight 1/max(1, t - (T - LAST)), LAST at most T: until
    the tail begins it is the newest model, from then on the mean of those since. It is computed from released models
    alone, so that it costs no privacy. A run that ends early is tested on the mean of the tail as far as it came.
    """

    name = "tail-average"
    summary = "fixed clip norm; what is tested is the mean of the models of the LAST rounds"
    parameters = (
        Parameter("last", "rounds at the end whose models are averaged", 10.0, allowed=COUNT, search=(5.0, 10.0, 20.0)),
        Parameter("clip_norm", "clip norm C", 1.0, ANCHOR, knob="clip_norm"),
    )
    needed_knobs = "clip_norm,average_weight"
    label_format = "average of the last {last:.0f}, clip {clip_norm:.3g}"

    def __init__(self, view: View, values: Mapping[str, float]):
        """Make the controller for a view with one decision per round.

        Raises:
            InputError: as in `Controller`, or a decision lasts several rounds: every round needs a weight of its own.
        """
        super().__init__(view, values)
        require(
            view.decision_rounds == 1,
            f"controller '{self.name}' weighs every round, but decision_rounds is {view.decision_rounds}.",
        )
        self._last = min(self.values["last"], view.rounds)
        weight = view.knob("average_weight")
        assert weight is not None
        weight.check(1 / self._last)

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        reached = seen.round + 1 - (self.view.rounds - self._last)
        return {
            "clip_norm": np.full(len(seen), self.values["clip_norm"]),
            "average_weight": 1 / np.maximum(1.0, reached),
        }


class ClientBudget(Controller):
    """Scales a client's share of the round's budget by (min R/R_i)^KAPPA.

    R_i is the client's risk; where clients have budgets of their own, the ratio is that of the budgets.
    """

    name = "client-budget"
    summary = "clients' shares of the budget by their risks or own budgets, to the power KAPPA: 0 uniform, 1 ADP-PFL"
    parameters = (
        Parameter(
            "kappa",
            "exponent κ",
            1.0,
            allowed=NOT_NEGATIVE,
            knob="client_budget_strength",
            search=(0.0, 0.5, 1.0, 2.0),
        ),
    )
    needed_knobs = "client_budget_strength"
    needed_features = ()
    label_format = "client budgets (kappa {kappa:.3g})"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return {"client_budget_strength": np.full(len(seen), self.values["kappa"])}
