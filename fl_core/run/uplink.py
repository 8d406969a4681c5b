"""Bytes of a client's upload."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_core.privacy.noise_model import NoiseModel
from fl_core.recipes.recipe import Recipe

VALUE = 4.0
"""Bytes of a float32."""


def uplink_bytes(recipe: Recipe, noise: NoiseModel, uploaded: Tensor, shared: Tensor) -> Tensor:
    """Count the bytes of each client's upload, `[rows]` or `[1]`: its values, and what tells the server which they are.

    Where a client's noise covers coordinates that its private choice left out, all of them are sent. A mask that the
    server does not know costs a bit per parameter (FedGLP-ADP eq. 20), or 4 bytes per position where that is less.

    Args:
        recipe: the method.
        noise: who adds which.
        uploaded: mask of what each client uploads `[rows, size]`, or `[1, size]` where all do alike.
        shared: mask of what it would upload without sparsification, likewise.
    """
    size = uploaded.shape[-1]
    values = VALUE * uploaded.sum(-1)
    told = torch.zeros_like(values)
    if recipe.personalization.masks_uploads:
        told = told + size / 8
    sparsification = recipe.sparsification
    if sparsification.kind == "none" or sparsification.is_public:
        return values + told
    if noise.fills_choices:
        return VALUE * shared.sum(-1) + told
    return values + told + values.clamp_max(size / 8)
