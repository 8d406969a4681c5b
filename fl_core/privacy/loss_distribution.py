"""Privacy loss distribution of one sampled Gaussian release, for dp-accounting to compose.

dp-accounting's own constructor calls Python functions at every point of the grid: three quarters of the time that
an ε takes at q = 0.01. Here all points are evaluated at once, and its grid, its distribution functions and its
construction are kept.
"""

from __future__ import annotations

import math
from typing import Any

from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import numpy as np


def sampled_gaussian(noise_multiplier: float, sampling_rate: float, interval: float) -> Any:
    """Discretize the privacy loss of one release, pessimistically, by connecting the dots (Doroshenko et al., 2022).

    Equals `from_gaussian_mechanism` of dp-accounting but for rounding errors.

    Args:
        noise_multiplier: σ > 0.
        sampling_rate: Poisson rate q in (0, 1].
        interval: width of the grid of losses.

    Returns:
        dp-accounting's `PrivacyLossDistribution`, with both directions of add/remove adjacency.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution  # here, because it takes seconds to import
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    parts = []
    for direction in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        mechanism = GaussianPrivacyLoss(noise_multiplier, sampling_prob=sampling_rate, adjacency_type=direction)
        bounds = mechanism.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        epsilons = np.arange(low, high + 1) * interval
        sign = 1.0 if direction is AdjacencyType.REMOVE else -1.0
        deltas = _deltas(mechanism, epsilons, sign, noise_multiplier, sampling_rate)
        parts.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas))
    return privacy_loss_distribution.PrivacyLossDistribution(*parts)


def _deltas(
    mechanism: Any, epsilons: FloatArray, sign: float, noise_multiplier: float, sampling_rate: float
) -> FloatArray:
    """Compute the hockey-stick divergences at these ε; `sign` is 1 if the client is removed and −1 if it is added.

    The loss reaches ε where ±ln(1 + (e^±ε − 1)/q) is the loss without sampling, which falls in x along a line. Past the
    least loss, ln(1 − q), of a removed client, all of the distribution exceeds ε, and past the greatest of an added
    one, nothing does.
    """
    reached = sign * epsilons > (math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf)
    deltas = np.where(reached | (sign < 0), 0.0, -np.expm1(np.minimum(epsilons, 0.0)))  # some ε below 0 are not reached
    loss = sign * epsilons[reached]
    if sampling_rate < 1:
        with np.errstate(divide="ignore"):  # at an end of the losses, which no x attains
            loss = np.log1p(np.maximum(np.expm1(loss) / sampling_rate, -1.0))
    x = -sign * (0.5 + noise_multiplier**2 * loss)
    within = mechanism.mu_upper_cdf(x) - np.exp(epsilons[reached] + mechanism.mu_lower_log_cdf(x))
    deltas[reached] = within
    return np.clip(deltas, 0.0, 1.0)
