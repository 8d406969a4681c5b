"""Release of a round's updates: clip, noise, sum and mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.base.arrays import IndexArray
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
        sizes: `participants` on the host `[runs]`.
    """

    updates: Tensor
    clip_ratio: Tensor | None
    sizes: IndexArray


@dataclass(frozen=True)
class RoundRelease:
    """Released sum of a round's updates, with what it was made of.

    Attributes:
        total: noised sum `[runs, size]`.
        exact: the sum without noise `[runs, size]`; exact private data.
        uploads: noised uploads `[runs, width, size]`, where each carries its own noise; else None.
        clipped: factors and norms of the clip.
        mean: the mean update that moves the server `[runs, size]`.
        expected_noise: norm that the noise of the sum is expected to have `[runs]`, from public values alone.
    """

    total: Tensor
    exact: Tensor
    uploads: Tensor | None
    clipped: Clipped
    mean: Tensor
    expected_noise: Tensor


class Releaser:
    """Clips, sums and noises the updates of a round, and averages the result, as the method's recipe says."""

    def __init__(self, config: FederationConfig, recipe: Recipe, model: Model):
        """Prepare the clip and the noise model for all rounds."""
        self._config, self._recipe, self._model = config, recipe, model
        self._noise = config.noise_model()
        self._clipping = recipe.mechanism.clipping
        self._blocks = self._clipping.blocks(model)

    def __call__(self, cohorts: Cohorts, draw: Draw) -> RoundRelease:
        """Clip, sum, noise and average the updates of a round, with standard normal draws of its noise stream."""
        recipe, config, weights = self._recipe, self._config, cohorts.weights
        updates, clipped = self._clipped(cohorts)
        exact = scaled_sum(updates, clipped, weights, self._blocks)
        total, uploads = self.noised(updates, clipped, exact, cohorts, draw)
        mean = recipe.aggregation.mean(total, config.cohort, cohorts.participants, self._sharers(cohorts))
        expected = self._noise.expected_norm(cohorts, self._model.size, config.cohort)
        return RoundRelease(total, exact, uploads, clipped, mean, expected)

    def noised(
        self, updates: Tensor, clipped: Clipped, exact: Tensor, cohorts: Cohorts, draw: Draw
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the noised sums `[runs, size]` and uploads `[runs, width, size]`; None for uploads without noise."""
        if not self._noise.private:
            return exact, None
        if not self._noise.by_upload:
            return (exact + self._noise.of_sum(cohorts).of(draw(False))).to(exact.dtype), None
        noise = self._noise.of_uploads(cohorts).of(draw(True))
        uploads = (scaled_uploads(updates, clipped, self._blocks) + noise).to(updates.dtype)
        total = (uploads if cohorts.weights is None else uploads * cohorts.weights.unsqueeze(-1)).sum(1)
        return self._with_empty_cohorts(total, cohorts, draw), uploads

    def _with_empty_cohorts(self, total: Tensor, cohorts: Cohorts, draw: Draw) -> Tensor:
        """Replace the sums `[runs, size]` of empty cohorts by the server's noise: zeros would reveal them."""
        if (cohorts.sizes > 0).all():
            return total
        noise = self._noise.of_sum(cohorts).of(draw(False)).to(total.dtype)
        return torch.where((cohorts.participants == 0).unsqueeze(-1), noise, total)

    # ---------------------------------------------------------------- clip

    def clip(self, cohorts: Cohorts) -> tuple[Clipped, Tensor]:
        """Clip the updates of a cohort, as clients do before they upload; returns the clipped ones one by one, too."""
        updates, clipped = self._clipped(cohorts)
        return clipped, scaled_uploads(updates, clipped, self._blocks)

    def _clipped(self, cohorts: Cohorts) -> tuple[Tensor, Clipped]:
        updates = self._clipping.clamp(cohorts.updates, cohorts.clip, self._config.cohort)
        return updates, clip_factors(updates, cohorts.present, self._clip_norms(cohorts), self._blocks)

    def _clip_norms(self, cohorts: Cohorts) -> Tensor | None:
        """Compute the clip norm of every client and block `[runs, width or 1, blocks]`; None for no clip."""
        norms = self._clipping.norms(cohorts.clip, cohorts.layer_weights)
        if norms is not None and cohorts.clip_ratio is not None:
            norms = norms * cohorts.clip_ratio.clamp_max(1.0).unsqueeze(-1)
        return norms

    # ---------------------------------------------------------------- aggregation and accounts

    def _sharers(self, cohorts: Cohorts) -> Tensor | None:
        """Count the clients that upload each coordinate `[runs, size]`; None unless the mean divides by them."""
        if self._recipe.aggregation.divide_by != "count" or cohorts.uploaded is None:
            return None
        present = cohorts.present.to(cohorts.uploaded.dtype).unsqueeze(-1)
        return (cohorts.uploaded * present).sum(1)

    def effective_factor(self, who: Contributors) -> Tensor:
        """Compute the factor on σ that the actual noise of one run's sum certifies, given its cohort at C = σ = 1.

        Below 1 also for a clip per coordinate, which lets updates pass that are longer than C.
        """
        share = self._clipping.certified_share(self._model.size, self._config.cohort)
        return self._noise.effective_factor(who) * share
