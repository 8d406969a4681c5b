"""Adaptive clipping: the clip norm follows a quantile of the clients' update norms."""

from __future__ import annotations

import numpy as np

from envs.signals import ROUND_FRACTION, last_action
from policies.base import Controller
from policies.parameters import KNOB, SHARE, Parameter
from policies.view import FloatArray, Seen


class AdaptiveQuantileClip(Controller):
    """C <- C exp(-RATE (b - QUANTILE)), b the noised share of clients whose update norm is at most C.

    Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive clipping", 2021, section 2 and
    algorithm 1. A share above the quantile means that C is too large, hence the minus: C falls where most updates fit
    and rises where most are clipped. The share is released with noise and paid for from the run's budget. The rule
    moves once per decision; where that lasts several rounds, b is their mean.

    The clip norm before is read from the observation, where it lies within the knob's range.
    """

    name = "aqc"
    summary = "clip norm follows a quantile of the update norms (Andrew et al. 2021); its noised bit is paid for"
    parameters = (
        Parameter("quantile", "share of clients to leave unclipped", 0.5, allowed=SHARE),
        Parameter("rate", "step of log C per unit of the share's error", 0.2),
        Parameter("start", "clip norm of the first round", 1.0, KNOB, knob="clip_norm"),
    )
    needed_signals = "accounted"
    needed_features = (ROUND_FRACTION, last_action("clip_norm"), "unclipped_share_noised")
    label_format = "adaptive quantile {quantile:.3g} (rate {rate:.3g}, start {start:.3g})"

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        knob = next(knob for knob in self.view.knobs if knob.name == "clip_norm")
        error = seen.unclipped_share - self.values["quantile"]
        moved = seen.last(knob) * np.exp(-self.values["rate"] * error)
        return {"clip_norm": np.where(seen.round == 0, self.values["start"], moved)}
