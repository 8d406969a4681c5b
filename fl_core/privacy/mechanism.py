"""The Gaussian mechanism on client updates: clip each client to C, add noise of std C times sigma to the sum.

Placements differ in who adds the noise, hence in whom it protects against:
`central`: the server adds std C*sigma to the sum; `distributed`: the clients' shares add up to std C*sigma, and only
the sum is seen (secure aggregation); `local`: each upload carries std C*sigma by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.errors import unknown_name

PLACEMENTS = {
    "central": "the server adds the noise; holds against whoever sees the released models",
    "distributed": "the clients' noise adds up to the same; holds against a server that sees only the sum",
    "local": "each client adds the full noise; holds against a server that sees each upload",
}


@dataclass(frozen=True)
class Mechanism:
    """Clip and noise of a method.

    Attributes:
        private: whether updates are clipped and noised at all; without it a run certifies no epsilon.
        knobs: what a controller may set about it.
    """

    private: bool = True

    @property
    def knobs(self) -> tuple[str, ...]:
        """Names of the settings a controller may choose per round."""
        return ("clip_norm",) if self.private else ()


def check_placement(placement: str) -> None:
    """Refuse an unknown placement."""
    if placement not in PLACEMENTS:
        raise unknown_name("placement", placement, PLACEMENTS)


@dataclass(frozen=True)
class Clipped:
    """Clipped updates of the cohort.

    Attributes:
        total: sum over the cohort `[runs, size]`.
        norms: norms before the clip `[runs, clients]`, 0 for a client that is absent or not finite.
        within: clients whose norm is at most C `[runs, clients]` (bool; False for absent ones).
        finite: clients whose update is finite `[runs, clients]` (bool).
    """

    total: Tensor
    norms: Tensor
    within: Tensor
    finite: Tensor


def clip_and_sum(updates: Tensor, present: Tensor, clip_norm: Tensor | None) -> Clipped:
    """Sum of updates, each scaled to norm at most C as one vector over all layers.

    A client whose update is not finite contributes zero. Its removal changes the sum by at most C, as any client's.

    Args:
        updates: `[runs, clients, size]`.
        present: bool `[runs, clients]`; the rows of absent clients are ignored whatever they hold.
        clip_norm: C per run `[runs]`, or None for no clipping.
    """
    norms = torch.linalg.vector_norm(updates, dim=-1)
    finite = torch.isfinite(norms) | ~present
    counted = present & finite
    norms = torch.where(counted, norms, 0.0)
    updates = torch.where(counted.unsqueeze(-1), updates, 0.0)  # a zero weight would not cancel a NaN
    weights = counted.to(updates.dtype)
    within = counted
    if clip_norm is not None:
        bound = clip_norm.unsqueeze(-1)
        weights = weights * (bound / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0)
        within = counted & (norms <= bound)
    total = torch.bmm(weights.unsqueeze(1), updates).squeeze(1)
    return Clipped(total, norms, within, finite)


def noise_std(placement: str, clip_norm: Tensor, noise_multiplier: Tensor, participants: Tensor) -> Tensor:
    """Std of the noise in each coordinate of the sum `[runs]`.

    The shares of `distributed` (C*sigma/sqrt(participants) each) add up to C*sigma, and the server tops up an empty
    cohort; uploads of `local` add up to C*sigma*sqrt(participants), at least one being noised.

    Args:
        placement: one of `PLACEMENTS`.
        clip_norm: C per run `[runs]`.
        noise_multiplier: sigma per run `[runs]`.
        participants: clients in this round's cohort `[runs]`.
    """
    std = clip_norm * noise_multiplier
    return std * participants.clamp_min(1).sqrt() if placement == "local" else std


def noised_clip_share(
    within: Tensor, present: Tensor, cohort: float, noise_multiplier: Tensor, noise: Tensor
) -> Tensor:
    """The quantile bit: noised share of the cohort within the clip norm (Andrew et al. 2021, sec. 2).

    Releases sum(b - 1/2) + N(0, (noise_multiplier/2)^2), whose sensitivity is 1/2, over the expected cohort.

    Args:
        within: clients whose update was within the clip norm `[runs, clients]` (bool).
        present: clients that took part `[runs, clients]` (bool).
        cohort: expected cohort size.
        noise_multiplier: noise std over the sensitivity 1/2 `[runs]`.
        noise: standard normal draws `[runs]`.

    Returns:
        Shares `[runs]`, not clamped: the noise may push them below 0 or above 1.
    """
    votes = torch.where(present, within.to(noise.dtype) - 0.5, 0.0).sum(-1)
    return 0.5 + (votes + noise * noise_multiplier / 2) / cohort
