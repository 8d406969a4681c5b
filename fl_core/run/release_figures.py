"""Public figures of a released sum: functions of it, of the one before, and of the noise that was asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_core.models.layout import Layout
from fl_core.privacy.telemetry import PER_LAYER
from fl_core.recipes.clipping import layer_norms


def release_figures(total: Tensor, last: Tensor, expected_noise: Tensor, cohort: float) -> dict[str, Tensor]:
    """Compute norm, noise and direction of the released sums, by figure name `[runs]`, in the model's own units.

    Args:
        total: the noised sums `[runs, size]`.
        last: those of the round before, zeros at first `[runs, size]`.
        expected_noise: norm that their noise is expected to have `[runs]`.
        cohort: expected number of clients.
    """
    norm = torch.linalg.vector_norm(total, dim=-1)
    return {
        "release_norm": norm / cohort,
        "release_noise": expected_noise / cohort,
        "release_norm_ratio": over_noise(norm, expected_noise),
        "release_alignment": torch.cosine_similarity(total, last, dim=-1),
    }


def layer_figures(layout: Layout, total: Tensor, cohort: float) -> dict[str, Tensor]:
    """Compute the norm of each layer's part of the mean update, by figure name `[runs]`; arguments as above."""
    by_layer = layer_norms(layout, total) / cohort
    names = [f"release_layer_norm{PER_LAYER}{span.name}" for span in layout.layers]
    return dict(zip(names, by_layer.unbind(-1), strict=True))


def over_noise(value: Tensor, noise_norm: Tensor) -> Tensor:
    """Divide a norm by the noise's; 0 where there is no noise to compare with."""
    return torch.where(noise_norm > 0, value / noise_norm.clamp_min(torch.finfo(value.dtype).tiny), 0.0)
