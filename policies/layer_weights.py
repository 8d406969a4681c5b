"""Clip weights per layer that follow the layers' update norms in log-odds (FedGLP-ADP, Algorithm 1)."""

from __future__ import annotations

from typing import Any, ClassVar

from typing_extensions import override

from envs.knobs import PER_LAYER
from envs.signals import ROUND_FRACTION
from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import NDArray, special
from fl_core.base.libraries import numpy as np
from policies.base import Controller, State
from policies.parameters import NOT_NEGATIVE, Parameter
from policies.view import Seen

KNOB = "layer_weights"


class LogOddsWeights(Controller):
    """h_l <- h_l ± STEP, up where the norm of layer l's update grew since the last decision; w_l = sigmoid(h_l)/Σ.

    h_l starts at the log-odds of the layer's share of the parameters. The norms are those of the noised aggregate,
    which is released anyway: the sound reading of the algorithm, which takes exact norms. Norms and log-odds are kept
    in the state that `predict` returns; a caller that does not hand it back stays at the first round, which is also
    what `decide` gives.
    """

    name = "log-odds"
    summary = "clip weights per layer, moved in log-odds by the noised aggregate's layer norms (FedGLP-ADP, Alg. 1)"
    parameters = (
        Parameter("step", "step γ of a layer's log-odds", 0.8, allowed=NOT_NEGATIVE, search=(0.2, 0.4, 0.8, 1.6)),
    )
    needed_knobs = KNOB
    signal: ClassVar[str] = "release_layer_norm"
    needed_features = (ROUND_FRACTION, signal)
    label_format = "log-odds layer weights (step {step:.3g})"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        return self._weights(self._initial(len(seen)))

    @property
    def _layers(self) -> list[str]:
        return [knob.name.partition(PER_LAYER)[2] for knob in self.view.knobs_of(KNOB)]

    def _initial(self, rows: int) -> FloatArray:
        """Compute the log-odds of the layers' shares of the parameters `[n, layers]`."""
        sizes = np.array([self.view.layer_sizes[layer] for layer in self._layers], dtype=np.float64)
        share = np.clip(sizes / sizes.sum(), 1e-6, 1 - 1e-6)
        return np.tile(special.logit(share), (rows, 1))

    def _weights(self, log_odds: FloatArray) -> dict[str, FloatArray]:
        """Convert log-odds `[n, layers]` to knob values; only ratios count, so the largest gets the range's top."""
        odds = special.expit(log_odds)
        odds = odds / odds.max(axis=-1, keepdims=True)
        return {f"{KNOB}{PER_LAYER}{layer}": odds[:, index] for index, layer in enumerate(self._layers)}

    def _norms(self, seen: Seen) -> FloatArray:
        """Read the norms of the layers' updates `[n, layers]`."""
        return 10 ** (2 * self._signals(seen))

    def _signals(self, seen: Seen) -> FloatArray:
        return np.stack([seen.feature(f"{self.signal}{PER_LAYER}{layer}") for layer in self._layers], axis=-1)

    @override
    def _next_state(self, state: State | None, episode_start: NDArray[Any] | None, seen: Seen) -> State | None:
        first = seen.round == 0
        norms = np.where(first[:, None], 0.0, self._norms(seen))
        initial = self._initial(len(seen))
        if state is None:
            return initial, norms
        if episode_start is not None:
            first = first | np.asarray(episode_start, dtype=bool)
        log_odds, before = state
        moved = log_odds + self.values["step"] * np.where(norms > before, 1.0, -1.0)
        return np.where(first[:, None], initial, moved), norms

    @override
    def _coordinates(self, seen: Seen, state: State | None) -> FloatArray:
        log_odds = self._initial(len(seen)) if state is None else state[0]
        return self._encoded(self._weights(log_odds), len(seen))


class PaidLogOddsWeights(LogOddsWeights):
    """Follows the clients' mean layer norms, released with noise of their own and paid for.

    The released norms are relative to the clip norm.
    """

    name = "log-odds-paid"
    summary = "log-odds from the clients' mean layer norms, released with noise and paid for"
    needed_signals = "accounted"
    needed_telemetry = "layer-norms"
    signal = "layer_norm_noised"
    needed_features = (ROUND_FRACTION, signal)
    label_format = "log-odds layer weights from paid norms (step {step:.3g})"

    @override
    def _norms(self, seen: Seen) -> FloatArray:
        norms = (self._signals(seen) + 1) / 2
        clip = self.view.knob("clip_norm")
        return norms if clip is None else norms * seen.last(clip)[:, None]
