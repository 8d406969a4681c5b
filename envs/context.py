"""Context: settings of an instance as features, visible to a controller or hidden from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from envs.signals import CONTEXT_PREFIX, SIGNAL, Feature, share_scale
from fl_core.base.errors import require_name
from fl_core.base.libraries import numpy as np
from fl_core.data.partition import concentration
from fl_core.models.layout import Layout
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.plan import FloatArray

CONTEXTS = ("hidden", "visible")


@dataclass(frozen=True)
class ContextFeature:
    """A line of the catalogue.

    Attributes:
        read: its value for the settings that runs share, a run's own, and the model.
        scale: from the value to the feature, for arrays.
        scaled: what `scale` does, in words.
        summary: what it is.
    """

    read: Callable[[FederationConfig, RunSettings, Layout], float]
    scale: Callable[[FloatArray], FloatArray]
    scaled: str
    summary: str


def _learning_rate(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return config.learning_rate if run.learning_rate is None else run.learning_rate


def _concentration(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return concentration(config.partition if run.partition is None else run.partition, model.classes)


def _clients(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return config.clients


def _parameters(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return model.size


def _update_scale(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return config.update_scale if run.update_scale is None else run.update_scale


def _calibrated_norm(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    from fl_core.run.calibration import calibrated_norm  # it needs torch, which names and numbers do without

    return calibrated_norm(config, run, model.size)


def _calibrated_step(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    from fl_core.run.calibration import calibrated_gradient

    return _calibrated_norm(config, run, model) / calibrated_gradient(config, run)


def _cohort(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return config.cohort


def _rounds(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return config.rounds


def _signal(config: FederationConfig, run: RunSettings, model: Layout) -> float:
    return config.cohort * math.sqrt(config.rounds / model.size)


def _rate_scale(rate: FloatArray) -> FloatArray:
    return np.asarray(np.log10(rate) + 1)


def _norm_scale(norm: FloatArray) -> FloatArray:
    return np.asarray(np.log10(norm))


def _rounds_scale(rounds: FloatArray) -> FloatArray:
    return np.asarray(np.log10(rounds) - 2)


def _clients_scale(clients: FloatArray) -> FloatArray:
    return np.asarray(np.log10(clients) - 2)


def _parameters_scale(parameters: FloatArray) -> FloatArray:
    return np.asarray((np.log10(parameters) - 4) / 2)


CONTEXT: dict[str, ContextFeature] = {
    f"{CONTEXT_PREFIX}{name}": feature
    for name, feature in {
        "learning_rate": ContextFeature(_learning_rate, _rate_scale, "log10(x) + 1", "local learning rate"),
        "heterogeneity": ContextFeature(
            _concentration, share_scale, "2x - 1", "how few classes a client holds, 0 for all and 1 for one"
        ),
        "clients": ContextFeature(_clients, _clients_scale, "log10(x) - 2", "clients N"),
        "parameters": ContextFeature(
            _parameters,
            _parameters_scale,
            "(log10(x) - 4)/2",
            "parameters of the model",
        ),
        "update_scale": ContextFeature(_update_scale, _norm_scale, "log10(x)", "unit of the norms"),
    }.items()
}
"""By figure. All are settings, known before any data is touched. Adding one is adding an entry."""
CALIBRATED_NORM, CALIBRATED_STEP, COHORT, ROUNDS = "calibrated_norm", "calibrated_step", "cohort", "rounds"
KNOWN: dict[str, ContextFeature] = CONTEXT | {
    CALIBRATED_NORM: ContextFeature(_calibrated_norm, _norm_scale, "log10(x)", "length of an update on random data"),
    CALIBRATED_STEP: ContextFeature(
        _calibrated_step, _norm_scale, "log10(x)", "length of an update over that of one gradient, both on random data"
    ),
    COHORT: ContextFeature(_cohort, _clients_scale, "log10(x) - 2", "expected clients per round"),
    ROUNDS: ContextFeature(_rounds, _rounds_scale, "log10(x) - 2", "rounds T"),
    SIGNAL: ContextFeature(_signal, _norm_scale, "log10(x)", "n √T/√d, for n clients per round and d parameters"),
}
"""Everything that follows from the settings of an instance: its context, and what relative knobs refer to."""


def context_features(context: str) -> tuple[Feature, ...]:
    """Make the features of the context; none if it is hidden.

    Raises:
        InputError: `context` is neither.
    """
    require_name("context", context, CONTEXTS)
    if context == "hidden":
        return ()
    return tuple(
        Feature(name, "public", name, one.scale, one.summary, scaled=one.scaled) for name, one in CONTEXT.items()
    )
