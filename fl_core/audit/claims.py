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

LEAST_ASKED = 0.1
"""Least part of a round's budget that a client asks for (ADP-PFL): its noise grows tenfold at most."""


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


def noise_there(federation: StagedFederation, cohorts: Cohorts) -> Tensor:
    """Std of the noise that is really in the sum `[runs, size]`, by what each upload adds to it.

    Under `sound` that is the claim. As published, clients whose masks differ noise only what they upload, so that k of
    m leave √(k/m) of the claimed noise in a coordinate.
    """
    model = federation.noise
    if not model.by_upload:
        return claimed_std(federation, cohorts)
    share = torch.ones_like(cohorts.participants) if model.in_full else 1 / cohorts.participants.clamp_min(1)
    std = (cohorts.clip * cohorts.noise_multiplier * share.sqrt())[:, None, None] * _layer_factors(federation, cohorts)
    each = std.square() * cohorts.present.unsqueeze(-1)
    if cohorts.noise_ratio is not None:
        each = each / cohorts.noise_ratio.clamp(LEAST_ASKED, 1.0).square().unsqueeze(-1)
    if cohorts.weights is not None:
        each = each * cohorts.weights.square().unsqueeze(-1)
    if cohorts.uploaded is not None:
        each = each * (cohorts.uploaded > 0)
    total = each.sum(1).sqrt()
    empty = (cohorts.participants == 0).unsqueeze(-1)
    return torch.where(empty, claimed_std(federation, cohorts), total)


def certified_multiplier(federation: StagedFederation, cohorts: Cohorts) -> float:
    """Part of the claimed noise multiplier that the noise in the sum is worth to its least protected client.

    A client moves the sum by C_l in layer l times its weight, in the worst case in those of the coordinates that it
    uploads which have the least noise; layers add up as Gaussian releases do. Of the first run.
    """
    mechanism, config = federation.recipe.mechanism, federation.config
    there = cohorts.present[0]
    if federation.noise.in_full or not bool(there.any()):
        return 1.0
    std = noise_there(federation, cohorts)[0] / (cohorts.clip[0] * cohorts.noise_multiplier[0])
    rows = int(there.sum())
    weights = torch.ones(rows, device=std.device) if cohorts.weights is None else cohorts.weights[0, there]
    layers = [slice(0, federation.model.size)]
    shares = torch.ones(rows, 1, device=std.device)
    if mechanism.clip == "layers":
        layers = [span.slice for span in federation.model.layers]
        shares = _shares(cohorts)[0].expand(len(there), -1)[there]
    if mechanism.clip == "coordinates":
        shares = shares * federation.model.size / clamp_size(mechanism.clamp_count, config.cohort)
    precisions = torch.zeros(rows, dtype=torch.float64, device=std.device)
    for index, layer in enumerate(layers):
        noise = std[layer].expand(rows, -1)
        if cohorts.uploaded is not None and federation.noise.by_upload:
            masks = cohorts.uploaded[0].expand(len(there), -1)[there][:, layer] > 0
            noise = torch.where(masks, noise, torch.inf)
        least = torch.where(noise > 0, noise, torch.inf).amin(-1)
        precisions += (weights.square() * shares[:, index] / least.square()).to(torch.float64)
    return float(precisions.max().clamp_min(1e-300) ** -0.5)
