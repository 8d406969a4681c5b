"""Splitting a round's noise: the releases about one sample together are one release with the round's noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fl_core.base.bounds import is_number
from fl_core.base.errors import require
from fl_core.privacy.curves import require_noise_multiplier


def update_noise_multiplier(noise_multiplier: float, bit_noise: float) -> float:
    """σ_Δ = (σ⁻² − (2σ_b)⁻²)^(−1/2): what is left for the update when the round also releases its quantile bit.

    Andrew et al., "Differentially private learning with adaptive clipping" (2021), section 3.1. The bit is
    Σ(b − ½) + N(0, σ_b²), of sensitivity ½; its `Release` has the noise multiplier 2σ_b.

    Raises:
        InputError: unless σ < 2σ_b, because the bit alone would spend more than the round may.
    """
    require_noise_multiplier(noise_multiplier)
    require(
        is_number(bit_noise) and 0 <= noise_multiplier < 2 * bit_noise,
        f"bit_noise is {bit_noise}, but it must be above half the round's noise multiplier {noise_multiplier:g}.",
    )
    ratio = noise_multiplier / (2 * bit_noise)
    return noise_multiplier / math.sqrt((1 - ratio) * (1 + ratio))


def split_noise_multiplier(noise_multiplier: float, shares: Mapping[str, float]) -> dict[str, float]:
    """σ_k = σ/√share_k for each release of a round, so that together they are one release with σ.

    Raises:
        InputError: a share that is not above 0, or shares that do not sum to 1.
    """
    require_noise_multiplier(noise_multiplier)
    for name, share in shares.items():
        require(is_number(share) and share > 0, f"share of {name} is {share}, but it must be above 0.")
    total = math.fsum(shares.values())
    require(abs(total - 1) <= 1e-9, f"shares sum to {total}, but they must sum to 1.")
    return {name: noise_multiplier / math.sqrt(share / total) for name, share in shares.items()}
