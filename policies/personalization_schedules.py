"""Schedules of the personal share of the model, for methods whose masks grow (FedGLP-ADP, section 4.1 and eq. 11)."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from envs.signals import NOISE_LEVEL, ROUND_FRACTION
from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import numpy as np
from policies.base import Controller
from policies.parameters import NOT_NEGATIVE, Parameter
from policies.view import Seen

_LIMIT = Parameter(
    "limit", "share of each layer that becomes personal in all", 0.3, knob="personal_limit", search=(0.1, 0.3, 0.5, 0.8)
)


class ProgressivePersonalization(Controller):
    """Raises the personal share of each layer to β = LIMIT, by p = β/T in every round."""

    name = "progressive"
    summary = "personalization: the share LIMIT of each layer becomes personal, equally in every round (p = beta/T)"
    parameters: ClassVar[tuple[Parameter, ...]] = (_LIMIT,)
    needed_knobs = "personal_limit,personal_rate"
    label_format = "progressive personalization to {limit:.3g}"

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        limit = self._limit(seen)
        return {"personal_limit": limit, "personal_rate": limit / self.view.rounds}

    def _limit(self, seen: Seen) -> FloatArray:
        """Compute β of each run `[n]`."""
        return np.full(len(seen), self.values["limit"])


class NoiseScaledPersonalization(ProgressivePersonalization):
    """β(σ) = LIMIT exp(GROWTH (σ - σ₀)) up to 1, σ₀ the noise multiplier at EPSILON: more stays local under more noise.

    FedGLP-ADP does the same by default.
    """

    name = "noise-scaled"
    summary = "personalization: LIMIT at EPSILON, growing with the noise as exp(GROWTH (sigma - sigma_0)) (FedGLP-ADP)"
    parameters = (
        _LIMIT,
        Parameter(
            "growth", "growth a per unit of the noise multiplier", 0.2, allowed=NOT_NEGATIVE, search=(0.0, 0.2, 0.5)
        ),
        Parameter("epsilon", "epsilon at which LIMIT holds", 6.0),
    )
    needed_features = (ROUND_FRACTION, NOISE_LEVEL)
    label_format = "noise-scaled personalization ({limit:.3g} at epsilon {epsilon:.3g}, growth {growth:.3g})"

    @override
    def _limit(self, seen: Seen) -> FloatArray:
        exponent = self.values["growth"] * (seen.noise_multiplier - self.view.noise_at(self.values["epsilon"]))
        return np.minimum(1.0, self.values["limit"] * np.exp(np.minimum(exponent, 700.0)))
