"""Probe: a few cheap rounds locate the clients' median update norm, and the rest of the run clips in units of it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from typing_extensions import override

from envs.signals import MEDIAN_NORM, ROUND_FRACTION, SIGNAL
from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import numpy as np
from policies.base import Controller
from policies.parameters import ANY, COUNT, SHARE, Parameter
from policies.schedules import geometric
from policies.view import Seen

CHOSEN: dict[str, Any] = json.loads(files("policies").joinpath("probe.json").read_text(encoding="utf-8"))
"""The constants, how they were chosen on proxy clients, and the setting that they refer to."""
STEP, ROUNDS = "calibrated_step", "rounds"
MOST_TELEMETRY, LEAST_TELEMETRY = 0.5, 0.01
CAUTIOUS = 0.05
"""Server learning rate of the rounds that probe."""
LONGEST_PROBE = 4
"""One in so many rounds, at most, probes."""


class Probe(Controller):
    """Probes for ROUNDS rounds, then C_t = f_t m with f_t from START to END, m the estimated median norm.

    A probing round spends PACE of an equal share of the budget, half of it on the clip bit, at C = m and a server
    learning rate of 0.05, so that little is spent or spoiled while m is located (`envs.norm_estimate`). From then on
    the bit gets 1 %. The clip norm follows the norms, and the server learning rate η sets the travel: it is

        η = (S₀/S)·(T₀/T)·(Q/Q₀)^NOISE,  Q = n √T/(σ √d),

    with S the length of an update over that of one gradient (both on random data, so free), T rounds, n clients per
    round, σ the noise multiplier and d parameters; S₀, T₀ and Q₀ are those of the task `digits`. What η's range cannot
    hold, the clip norm takes over.
    """

    name = "probe"
    summary = "locates the median update norm in a few cheap rounds, then clip norms from START to END times it"
    parameters = (
        Parameter("start", "first clip norm over the median", CHOSEN["constants"]["start"], search=(1.0, 1.4)),
        Parameter("end", "last clip norm over the median", CHOSEN["constants"]["end"], search=(0.25, 0.4)),
        Parameter(
            "noise",
            "exponent of the signal to noise in the travel",
            CHOSEN["constants"]["noise"],
            allowed=ANY,
            search=(0.5, 1.0),
        ),
        Parameter("rounds", "rounds that probe", CHOSEN["constants"]["rounds"], allowed=COUNT),
        Parameter("pace", "budget of one over an equal share", CHOSEN["constants"]["pace"], allowed=SHARE),
    )
    needed_knobs = "clip_median,budget_pace,telemetry_share,server_learning_rate"
    needed_signals = "accounted"
    needed_features = (ROUND_FRACTION, ROUNDS, MEDIAN_NORM, STEP, SIGNAL)
    any_length = True
    label_format = "probe {rounds:.0f}, then {start:.3g} to {end:.3g} medians"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        rounds = 10 ** (seen.feature(ROUNDS) + 2)
        done = np.rint((seen.feature(ROUND_FRACTION) + 1) / 2 * rounds)
        probed = np.minimum(self.values["rounds"], np.rint(rounds) // LONGEST_PROBE)
        probing = done < probed
        every = self.view.decision_rounds
        last = (np.rint(rounds) - 1) // every * every - probed
        progress = np.clip((done - probed) / np.maximum(last, 1.0), 0.0, 1.0)
        wanted = self._travel(seen, rounds)
        knob = self.view.knob("server_learning_rate")
        assert knob is not None
        rate = np.clip(wanted, knob.low, knob.high)
        clip = geometric(self.values["start"], self.values["end"], progress) * np.maximum(1.0, wanted / rate)
        return {
            "clip_median": np.where(probing, 1.0, clip),
            "server_learning_rate": np.where(probing, CAUTIOUS, rate),
            "budget_pace": np.where(probing, self.values["pace"], 1.0),
            "telemetry_share": np.where(probing, MOST_TELEMETRY, LEAST_TELEMETRY),
        }

    def _travel(self, seen: Seen, rounds: FloatArray) -> FloatArray:
        """Compute the server learning rate that gives the travel of the reference, corrected for the noise `[n]`."""
        reference = CHOSEN["reference"]
        step, signal = 10 ** seen.feature(STEP), 10 ** seen.feature(SIGNAL)
        corrected = (signal / reference["signal"]) ** self.values["noise"]
        return np.asarray(reference["step"] / step * reference["rounds"] / rounds * corrected)
