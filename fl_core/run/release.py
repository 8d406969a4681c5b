"""Release of a round's updates: clip, noise, sum and mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.models.model import Model
from fl_core.privacy.mechanism import Clipped, clip_factors, scaled_sum, scaled_uploads
from fl_core.privacy.noise_model import Contributors
from fl_core.recipes.recipe import Recipe
from fl_core.run.config import FederationConfig

Draw = Callable[[bool], Tensor]
"""Standard normal draws of the round's noise stream: for the sum `[runs, size]`, or for each upload `[runs, width,
size]`."""


@dataclass(frozen=True, kw_only=True)
class Cohorts(Contributors):
    """The updates of a round, as tensors over every run's cohort.

    Attributes:
        updates: `[runs, width, size]`, zero where nothing is uploaded.
        clip_ratio: part of C that each client uses `[runs, width]`; None for all of it.
    """

    updates: Tensor
    clip_ratio: Tensor | None


@dataclass(frozen=True)
class Released:
    """Results of a release.

    Attributes:
        total: noised sum `[runs, size]`.
        exact: the sum without noise `[runs, size]`; raw.
        uploads: noised uploads `[runs, width, size]`, where each carries its own noise; else None.
        clipped: of the clip.
        mean: the mean update that moves the server `[runs, size]`.
        expected_noise: norm that the noise of the sum is expected to have `[runs]`, from public figures alone.
    """

    total: Tensor
    exact: Tensor
    uploads: Tensor | None
    clipped: Clipped
    mean: Tensor
    expected_noise: Tensor


class Releasing:
    """Clip, noise and aggregation of a method."""

    def __init__(self, config: FederationConfig, recipe: Recipe, model: Model):
        """Settle what does not change from round to round."""
        self._config, self._recipe, self._model = config, recipe, model
        self._noise = config.noise_model()
        self._clipping = recipe.mechanism.clipping
        self._blocks = self._clipping.blocks(model)

    def __call__(self, cohorts: Cohorts, draw: Draw) -> Released:
        """Release the round's updates."""
        recipe, config, weights = self._recipe, self._config, cohorts.weights
        updates = self._clipping.clamp(cohorts.updates, cohorts.clip, config.cohort)
        clipped = clip_factors(updates, cohorts.present, self._clip_norms(cohorts), self._blocks)
        exact = scaled_sum(updates, clipped, weights, self._blocks)
        total, uploads = self.noised(updates, clipped, exact, cohorts, draw)
        mean = recipe.aggregation.mean(total, config.cohort, cohorts.participants, self._sharers(cohorts))
        expected = self._noise.expected_norm(cohorts, self._model.size, config.cohort)
        return Released(total, exact, uploads, clipped, mean, expected)

    def noised(
        self, updates: Tensor, clipped: Clipped, exact: Tensor, cohorts: Cohorts, draw: Draw
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the noised sums `[runs, size]`, and where each upload carries its own noise those uploads."""
        if not self._noise.private:
            return exact, None
        if not self._noise.by_upload:
            return (exact + self._noise.of_sum(cohorts).of(draw(False))).to(exact.dtype), None
        noise = self._noise.of_uploads(cohorts).of(draw(True))
        uploads = (scaled_uploads(updates, clipped, self._blocks) + noise).to(updates.dtype)
        total = (uploads if cohorts.weights is None else uploads * cohorts.weights.unsqueeze(-1)).sum(1)
        return self._with_empty_cohorts(total, cohorts, draw), uploads

    def _with_empty_cohorts(self, total: Tensor, cohorts: Cohorts, draw: Draw) -> Tensor:
        """Replace the sums `[runs, size]` of empty cohorts by the server's noise: silence would tell."""
        empty = cohorts.participants == 0
        if not bool(empty.any()):
            return total
        noise = self._noise.of_sum(cohorts).of(draw(False)).to(total.dtype)
        return torch.where(empty.unsqueeze(-1), noise, total)

    # ---------------------------------------------------------------- clip

    def _clip_norms(self, cohorts: Cohorts) -> Tensor | None:
        """Compute C of every client and block `[runs, width or 1, blocks]`."""
        norms = self._clipping.norms(cohorts.clip, cohorts.layer_weights)
        if norms is not None and cohorts.clip_ratio is not None:
            norms = norms * cohorts.clip_ratio.clamp_max(1.0).unsqueeze(-1)
        return norms

    # ---------------------------------------------------------------- aggregation and accounts

    def _sharers(self, cohorts: Cohorts) -> Tensor | None:
        """Count the clients that upload each coordinate `[runs, size]`; None where all do."""
        if self._recipe.aggregation.divide_by != "count" or cohorts.uploaded is None:
            return None
        present = cohorts.present.to(cohorts.uploaded.dtype).unsqueeze(-1)
        return (cohorts.uploaded * present).sum(1)

    def effective_factor(self, who: Contributors) -> float:
        """Compute the part of σ that the real noise of one run's cohort certifies, C = σ = 1.

        A clip per coordinate lets updates through that are longer than C.
        """
        share = self._clipping.certified_share(self._model.size, self._config.cohort)
        return self._noise.effective_factor(who) * share
