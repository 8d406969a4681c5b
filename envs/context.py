"""Context: settings of an instance as features, visible to a controller or hidden from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import fl_core
from envs.signals import CONTEXT_PREFIX, Feature, share_scale
from fl_core.base.errors import require_name
from fl_core.data.partition import concentration
from fl_core.run.plan import FloatArray

CONTEXTS = ("hidden", "visible")


@dataclass(frozen=True)
class ContextFeature:
    """A line of the catalogue.

    Attributes:
        read: its value for a row of a federation.
        scale: from the value to the feature, for arrays.
        scaled: what `scale` does, in words.
        summary: what it is.
    """

    read: Callable[[fl_core.Federation, int], float]
    scale: Callable[[FloatArray], FloatArray]
    scaled: str
    summary: str


def _learning_rate(federation: fl_core.Federation, row: int) -> float:
    own = federation.settings[row].learning_rate
    return federation.config.learning_rate if own is None else own


def _concentration(federation: fl_core.Federation, row: int) -> float:
    own = federation.settings[row].partition
    return concentration(federation.config.partition if own is None else own, federation.model.classes)


def _clients(federation: fl_core.Federation, row: int) -> float:
    return federation.config.clients


def _parameters(federation: fl_core.Federation, row: int) -> float:
    return federation.model.size


def _update_scale(federation: fl_core.Federation, row: int) -> float:
    return float(federation.update_scales[row])


def _rate_scale(rate: FloatArray) -> FloatArray:
    return np.asarray(np.log10(rate) + 1)


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
        "update_scale": ContextFeature(_update_scale, np.log10, "log10(x)", "unit of the norms"),
    }.items()
}
"""By figure. All are settings, known before any data is touched. Adding one is adding an entry."""


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
