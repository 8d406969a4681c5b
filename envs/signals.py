"""Signals: what a controller may see, as features scaled to about [-1, 1], each with its privacy class."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from envs.knobs import Knob
from envs.listing import Listing
from envs.relative_clip import MEDIAN
from fl_core.base.errors import require_name
from fl_core.base.libraries import numpy as np
from fl_core.privacy.telemetry import PER_LAYER, TELEMETRY
from fl_core.run.plan import METRICS, FloatArray

FEATURE_BOUND = 2.0
"""Features are clipped to [-FEATURE_BOUND, FEATURE_BOUND]."""

SIGNAL_SETS = {
    "public": ("public",),
    "accounted": ("public", "accounted"),
    "paper": ("public", "raw"),
}
"""Classes of the features in each set: `paper` sees exact private telemetry, as the papers' agents do."""


@dataclass(frozen=True)
class Feature:
    """One entry of the observation.

    Attributes:
        name: what schedules look it up by.
        signal_class: `public`, `accounted` or `raw`.
        figure: the reported figure it is made of, averaged over the rounds of the last decision.
        scale: from the figure's value to the feature, for arrays.
        summary: what it is.
        before_first_round: its value at reset.
        scaled: what `scale` does to the figure x, in words.
    """

    name: str
    signal_class: str
    figure: str
    scale: Callable[[FloatArray], FloatArray]
    summary: str
    before_first_round: float = 0.0
    scaled: str = "x"

    @property
    def cells(self) -> dict[str, str]:
        """Texts for a listing, by column."""
        return {
            "signal": self.name,
            "class": self.signal_class,
            "scale": self.scaled,
            "what it shows, x": self.summary,
        }


def _figure(
    figure: str,
    scale: Callable[[FloatArray], FloatArray],
    scaled: str,
    summary: str,
    before_first_round: float = 0.0,
) -> Feature:
    return Feature(figure, METRICS[figure].signal_class, figure, scale, summary, before_first_round, scaled)


def unscaled(value: FloatArray) -> FloatArray:
    """Leave a figure that lies in [-1, 1] as it is."""
    return value


def share_scale(share: FloatArray) -> FloatArray:
    """Scale from [0, 1] to [-1, 1]."""
    return 2 * share - 1


def _log_ratio(ratio: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(ratio, 1e-6)))


def _over_chance(chance_loss: float, loss: FloatArray) -> FloatArray:
    return loss / chance_loss - 1


def _noise_scale(sigma: FloatArray) -> FloatArray:
    return np.asarray(np.log10(np.maximum(sigma, 0.01)) / 2)


def _catalogue(classes: int) -> tuple[Feature, ...]:
    """Make the features read from the rounds' reports, for a problem with `classes` classes."""
    return (
        _figure("budget_left", share_scale, "2x - 1", "share of the privacy budget left", 1.0),
        _figure(
            "release_norm_ratio",
            _log_ratio,
            "log x",
            "the released sum's norm over the noise's expected norm",
        ),
        _figure("release_alignment", unscaled, "x", "cosine between successive released sums"),
        _figure("clipped_share", share_scale, "2x - 1", "exact share of clients that were clipped"),
        _figure(
            "trimmed_accuracy",
            share_scale,
            "2x - 1",
            "exact accuracy of the clients' models, trimmed mean",
            -1.0,
        ),
        _figure(
            "trimmed_loss",
            partial(_over_chance, math.log(classes)),
            "x/log(classes) - 1",
            "exact loss of the clients' models, trimmed mean",
        ),
    )


def _paid_features(telemetry: Iterable[str], layers: Sequence[str]) -> tuple[Feature, ...]:
    """Make the features of released telemetry, each scaled over the range of its figure."""
    made = []
    for one in (TELEMETRY[name] for name in telemetry):
        scale = partial(_over_range, one.low, one.high)
        scaled = "2x - 1" if (one.low, one.high) == (0, 1) else f"from [{one.low:g}, {one.high:g}] to [-1, 1]"
        made += [Feature(name, "accounted", name, scale, one.summary, scaled=scaled) for name in one.figures(layers)]
    return tuple(made)


def _layer_features(layers: Sequence[str]) -> tuple[Feature, ...]:
    """Make the features of each layer's released norm, for controllers that set the layers' clip weights."""
    figure = "release_layer_norm"
    summary = "norm of the layer's part of the released mean update"
    return tuple(
        Feature(f"{figure}{PER_LAYER}{one}", "public", f"{figure}{PER_LAYER}{one}", half_decades, summary, 0.0, HALVED)
        for one in layers
    )


def _median_features(paid: bool) -> tuple[Feature, ...]:
    """Make the features that come with clip norms in units of the estimated median, which may rest on paid bits."""
    kind = "accounted" if paid else "public"
    median = "estimated median norm of the updates over that on random data"
    step = "length of an update over that of one gradient, both on random data"
    return (
        Feature(MEDIAN_NORM, kind, MEDIAN_NORM, _decades, median, 0.0, "log10(x)"),
        Feature(MEDIAN_SPREAD, kind, MEDIAN_SPREAD, unscaled, "posterior standard deviation of its logarithm"),
        Feature("calibrated_step", "public", "calibrated_step", _decades, step, 0.0, "log10(x)"),
        Feature("rounds", "public", "rounds", _rounds_scale, "rounds T of the run", 0.0, "log10(x) - 2"),
        Feature(SIGNAL, "public", SIGNAL, _decades, SIGNAL_SUMMARY, 0.0, "log10(x)"),
    )


def _decades(value: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log10(value))


def _rounds_scale(rounds: FloatArray) -> FloatArray:
    return np.asarray(np.log10(rounds) - 2)


MEDIAN_NORM, MEDIAN_SPREAD, SIGNAL = "median_norm", "median_spread", "signal"
SIGNAL_SUMMARY = "signal to noise of the whole run, n √T/(σ √d), for n clients per round and d parameters"
HALVED = "log10(x)/2"
LEAST_NORM = 1e-4


def half_decades(norm: FloatArray) -> FloatArray:
    """Scale to half the decimal logarithm: four decades to each side of 1 fit in an observation."""
    return np.asarray(np.log10(np.maximum(norm, LEAST_NORM)) / 2)


def _over_range(low: float, high: float, value: FloatArray) -> FloatArray:
    """Scale a figure from [low, high] to [-1, 1]."""
    return 2 * (value - low) / (high - low) - 1


def all_features() -> tuple[Feature, ...]:
    """List every feature that some observation may hold, except the knobs' last actions."""
    layer = ("LAYER",)
    paid = _paid_features(TELEMETRY, layer)
    return (_TIME, _NOISE, *_catalogue(classes=2), *_layer_features(layer), *paid, *_median_features(paid=True))


def last_action(knob: str) -> str:
    """Name the feature that holds a knob's last action coordinate."""
    return f"last_{knob}"


def is_schedule_feature(name: str) -> bool:
    """Return True if a feature is a function of time, the budget and the controller's own earlier actions alone.

    The actions of a controller that reads no other feature are fixed before the run.
    """
    return name in (ROUND_FRACTION, NOISE_LEVEL, "budget_left") or name.startswith((last_action(""), CONTEXT_PREFIX))


CONTEXT_PREFIX = "context_"
"""Prefix of the features of an instance's settings, which are known before its run."""
ROUND_FRACTION = "round_fraction"
NOISE_LEVEL = "noise_level"
_TIME = Feature(ROUND_FRACTION, "public", ROUND_FRACTION, share_scale, "rounds done over T", -1.0, "2x - 1")
_NOISE = Feature(
    NOISE_LEVEL,
    "public",
    NOISE_LEVEL,
    _noise_scale,
    "noise multiplier of the uniform schedule",
    0.0,
    HALVED,
)


def make_features(
    signals: str, knobs: tuple[Knob, ...], classes: int, telemetry: Iterable[str] = (), layers: Sequence[str] = ()
) -> Listing[Feature]:
    """Make the features of a signal set, in the order of the observation.

    Args:
        signals: one of `SIGNAL_SETS`.
        knobs: those of the action.
        classes: of the problem.
        telemetry: names of the telemetry that the rounds release.
        layers: names of the model's layers.

    Raises:
        InputError: the signal set is unknown.
    """
    require_name("signals", signals, SIGNAL_SETS)
    allowed = SIGNAL_SETS[signals]
    actions = tuple(
        Feature(
            last_action(knob.name),
            "public",
            last_action(knob.name),
            unscaled,
            f"last action coordinate of {knob.name}",
            float(knob.encode(knob.default)),
        )
        for knob in knobs
    )
    estimates = any(knob.name == MEDIAN for knob in knobs)
    by_median = _median_features("accounted" in allowed) if estimates else ()
    weighs_layers = any(knob.name.startswith(f"layer_weights{PER_LAYER}") for knob in knobs)
    by_layer = _layer_features(layers) if weighs_layers else ()
    read = tuple(feature for feature in _catalogue(classes) if feature.signal_class in allowed)
    paid = _paid_features(telemetry, layers) if "accounted" in allowed else ()
    return Listing((_TIME, _NOISE, *actions, *read, *by_layer, *paid, *by_median))
