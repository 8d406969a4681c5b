"""Claims of a method about a round, written a second time and from the papers, so that code can be tested by them.

The claim under every guarantee is a Gaussian mechanism: no client moves the sum of the uploads by more than C, and
the noise has std Cσ (of a single upload too, where noise is `local`; the sum of m of those has Cσ√m). With clips C_l
per layer, ΣC_l² = C², the noise of layer l has √L·C_l·σ: a client then still moves the whole by 1/σ standard
deviations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl_core.audit.staging import StagedFederation
from fl_core.recipes.parts import clamp_size
from fl_core.run.release import Cohorts


def claimed_std(federation: StagedFederation, cohorts: Cohorts) -> Tensor:
    """Compute the claimed std of the noise in the sum `[runs, size]`."""
    std = (cohorts.clip * cohorts.noise_multiplier).unsqueeze(-1)
    if federation.noise.in_full:
        std = std * cohorts.participants.clamp_min(1).sqrt().unsqueeze(-1)
    squares = _layer_factors(federation, cohorts).square()
    if squares.shape[1] > 1:  # clients with layer weights of their own: their noise adds up
        present = cohorts.present.unsqueeze(-1).to(squares.dtype)
        return std * ((squares * present).sum(1) / present.sum(1).clamp_min(1)).sqrt()
    return std * squares.squeeze(1).sqrt()


def claimed_upload_std(federation: StagedFederation, cohorts: Cohorts) -> Tensor:
    """Compute the claimed std of the noise in each upload, where it is local `[runs, width or 1, size]`."""
    return (cohorts.clip * cohorts.noise_multiplier)[:, None, None] * _layer_factors(federation, cohorts)


def claimed_contributions(federation: StagedFederation, cohorts: Cohorts) -> Tensor:
    """Compute what the claim leaves of each upload after the clip `[runs, width, size]`.

    Uploads here are far longer than C, so each comes out at its limit: C, in each layer C_l, times the share of the
    budget that the client asks for. A clip per coordinate keeps signs; that it bounds the whole by C is the claim.
    """
    mechanism, uploads, clip = federation.recipe.mechanism, cohorts.updates, cohorts.clip[:, None, None]
    if mechanism.clip == "coordinates":
        radius = clip / math.sqrt(clamp_size(mechanism.clamp_count, federation.config.cohort))
        left = uploads.clamp(-radius, radius)
        return _to_norm(left, clip)
    if cohorts.clip_ratio is not None:
        clip = clip * cohorts.clip_ratio.unsqueeze(-1)
    if mechanism.clip == "global":
        return _to_norm(uploads, clip)
    weights = _shares(cohorts)
    pieces = [
        _to_norm(uploads[..., span.slice], clip * weights[..., index, None].sqrt())
        for index, span in enumerate(federation.model.layers)
    ]
    return torch.cat(pieces, dim=-1)


def _to_norm(vectors: Tensor, norm: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    shortened: Tensor = vectors * (norm / length.clamp_min(1e-30)).clamp_max(1.0)
    return shortened


def _shares(cohorts: Cohorts) -> Tensor:
    """Compute C_l²/C² of each layer `[runs, width or 1, layers]`; they sum to 1 by the claim."""
    assert cohorts.layer_weights is not None
    return cohorts.layer_weights / cohorts.layer_weights.sum(-1, keepdim=True).clamp_min(1e-30)


def _layer_factors(federation: StagedFederation, cohorts: Cohorts) -> Tensor:
    """Compute √L·C_l/C in every coordinate `[runs, width or 1, size]`; 1 for a clip of the whole."""
    model = federation.model
    if federation.recipe.mechanism.clip != "layers":
        return torch.ones(1, 1, model.size, device=federation.device)
    factors = (len(model.layers) * _shares(cohorts)).sqrt()
    sizes = torch.tensor([span.stop - span.start for span in model.layers], device=federation.device)
    return factors.repeat_interleave(sizes, dim=-1)


def received(federation: StagedFederation, cohorts: Cohorts) -> Tensor:
    """Mask the coordinates in which somebody uploads something `[runs, size]` (bool)."""
    if cohorts.uploaded is None:
        return torch.ones(federation.runs, federation.model.size, dtype=torch.bool, device=federation.device)
    if cohorts.uploaded.shape[1] == 1:
        return cohorts.uploaded.squeeze(1) > 0
    return ((cohorts.uploaded > 0) & cohorts.present.unsqueeze(-1)).any(1)
