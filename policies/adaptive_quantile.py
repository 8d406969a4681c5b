"""Adaptive clipping: the clip norm follows a quantile of the clients' update norms."""

from __future__ import annotations

from typing_extensions import override

from envs.signals import ROUND_FRACTION, last_action
from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import numpy as np
from policies.base import Controller
from policies.parameters import KNOB, SHARE, Parameter
from policies.view import Seen


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
        Parameter("quantile", "share of clients to leave unclipped", 0.5, allowed=SHARE, search=(0.1, 0.3, 0.5, 0.7)),
        Parameter("rate", "step of log C per unit of the share's error", 0.2, search=(0.2, 0.6)),
        Parameter("start", "clip norm of the first round", 1.0, KNOB, knob="clip_norm"),
    )
    needed_signals = "accounted"
    needed_features = (ROUND_FRACTION, last_action("clip_norm"), "unclipped_share_noised")
    label_format = "adaptive quantile {quantile:.3g} (rate {rate:.3g}, start {start:.3g})"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        knob = next(knob for knob in self.view.knobs if knob.name == "clip_norm")
        error = self._unclipped(seen) - self.values["quantile"]
        moved = seen.last(knob) * np.exp(-self.values["rate"] * error)
        return {"clip_norm": np.where(seen.round == 0, self.values["start"], moved)}

    def _unclipped(self, seen: Seen) -> FloatArray:
        """Read the share of clients within the last clip norm `[n]`; noise may push it out of [0, 1]."""
        return (seen.feature("unclipped_share_noised") + 1) / 2


class ExactQuantileClip(AdaptiveQuantileClip):
    """Follows the exact share of unclipped clients, which no noise covers: the reference for the paid bit.

    A run under it releases more than its ε says, and its report says so.
    """

    name = "aqc-exact"
    summary = "aqc from the exact, unpaid share of unclipped clients; the run's epsilon does not cover it"
    needed_signals = "paper"
    needed_features = (ROUND_FRACTION, last_action("clip_norm"), "clipped_share")
    label_format = "exact adaptive quantile {quantile:.3g} (rate {rate:.3g}, start {start:.3g})"

    @override
    def _unclipped(self, seen: Seen) -> FloatArray:
        return 1 - (seen.feature("clipped_share") + 1) / 2
