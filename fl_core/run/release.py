"""What leaves the clients: clipped, noised, summed, and turned into the server's next model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.models.model import Model
from fl_core.privacy.mechanism import Clipped, clip_factors, noise_std, scaled_sum, scaled_uploads
from fl_core.recipes.mechanism import LEAST_RATIO
from fl_core.recipes.parts import clamp_size
from fl_core.recipes.recipe import Recipe
from fl_core.run.config import FederationConfig

Draw = Callable[[bool], Tensor]
"""Standard normal draws of the round's noise stream: for the sum `[runs, size]`, or for each upload `[runs, width,
size]`."""


@dataclass(frozen=True)
class Cohorts:
    """The updates of a round, as tensors over every run's cohort.

    Attributes:
        updates: `[runs, width, size]`, zero where nothing is uploaded.
        present: places that a client takes `[runs, width]` (bool).
        participants: clients per run `[runs]`.
        uploaded: mask of what each client uploads, `[runs, width, size]`, `[runs, 1, size]` or None for everything.
        samples: training samples of each client `[runs, width]`.
        clip: C `[runs]`.
        layer_weights: squared share of C of each layer `[runs, width or 1, layers]`, or None for one clip.
        noise_multiplier: σ `[runs]`.
        budget_ratio: share of the round's budget that each client gets `[runs, width]`, or None for all of it.
    """

    updates: Tensor
    present: Tensor
    participants: Tensor
    uploaded: Tensor | None
    samples: Tensor
    clip: Tensor
    layer_weights: Tensor | None
    noise_multiplier: Tensor
    budget_ratio: Tensor | None


@dataclass(frozen=True)
class Released:
    """What came out.

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
        by_layer = recipe.mechanism.clip == "layers"
        self._blocks = tuple(span.slice for span in model.layers) if by_layer else (slice(None),)
        self._sizes = torch.tensor([span.stop - span.start for span in model.layers])
        self._own_noise = recipe.mechanism.upload_noise or recipe.personalization.masks_uploads
        self._clamp_size = clamp_size(recipe.mechanism.clamp_count, config.cohort)

    def __call__(self, cohorts: Cohorts, draw: Draw) -> Released:
        """Release the round's updates."""
        recipe, config = self._recipe, self._config
        weights = None
        if recipe.aggregation.weights != "uniform":
            weights = recipe.aggregation.client_weights(cohorts.samples, cohorts.present)
        updates = self._clamped(cohorts)
        clipped = clip_factors(updates, cohorts.present, self._clip_norms(cohorts), self._blocks)
        exact = scaled_sum(updates, clipped, weights, self._blocks)
        uploads = None
        if not recipe.private:
            total = exact
        elif self._own_noise:
            uploads = scaled_uploads(updates, clipped, self._blocks)
            uploads = uploads + self._upload_noise(cohorts, draw)
            total = (uploads if weights is None else uploads * weights.unsqueeze(-1)).sum(1)
            total = self._with_empty_cohorts(total, cohorts, draw)
        else:
            total = exact + self._sum_noise(cohorts, weights, draw)
        mean = recipe.aggregation.mean(total, config.cohort, cohorts.participants, self._sharers(cohorts))
        return Released(total, exact, uploads, clipped, mean, self._expected_noise(cohorts))

    # ---------------------------------------------------------------- clip

    def _clamped(self, cohorts: Cohorts) -> Tensor:
        """The updates `[runs, width, size]`, each coordinate within C/√M where the clip is per coordinate."""
        if self._recipe.mechanism.clip != "coordinates":
            return cohorts.updates
        radius = (cohorts.clip / math.sqrt(self._clamp_size))[:, None, None]
        return torch.where(torch.isfinite(cohorts.updates), cohorts.updates.clamp(-radius, radius), cohorts.updates)

    def _clip_norms(self, cohorts: Cohorts) -> Tensor | None:
        """C of every client and block `[runs, width or 1, blocks]`."""
        if not self._recipe.private or self._recipe.mechanism.clip == "coordinates":
            return None
        norms = cohorts.clip[:, None, None]
        if cohorts.layer_weights is not None:
            norms = norms * cohorts.layer_weights.sqrt()
        if cohorts.budget_ratio is not None and not self._recipe.mechanism.exact_risk:
            norms = norms * cohorts.budget_ratio.clamp_max(1.0).unsqueeze(-1)
        return norms

    # ---------------------------------------------------------------- noise

    def _spread(self, cohorts: Cohorts) -> Tensor | None:
        """Factor on Cσ in every coordinate `[runs, width or 1, size]`: √L·√w_l of its layer; None where it is 1."""
        if cohorts.layer_weights is None:
            return None
        by_layer = (len(self._sizes) * cohorts.layer_weights).sqrt()
        return by_layer.repeat_interleave(self._sizes.to(by_layer.device), dim=-1)

    def _public_support(self, cohorts: Cohorts) -> Tensor | None:
        """Coordinates that the noise of the sum is restricted to `[runs, size]`: those everybody knows are in use."""
        if cohorts.uploaded is None or cohorts.uploaded.shape[1] != 1:
            return None
        return cohorts.uploaded.squeeze(1)

    def _sum_noise(self, cohorts: Cohorts, weights: Tensor | None, draw: Draw) -> Tensor:
        """Noise of the sum as one draw `[runs, size]`."""
        participants = cohorts.participants
        std = noise_std(self._config.placement, cohorts.clip, cohorts.noise_multiplier, participants)
        if weights is not None:
            std = std * (weights.square().sum(-1) / participants.clamp_min(1)).sqrt()
        noise = std.unsqueeze(-1) * draw(False)
        spread, support = self._spread(cohorts), self._public_support(cohorts)
        if spread is not None:
            noise = noise * (self._mean_spread(spread, cohorts) if spread.shape[1] > 1 else spread.squeeze(1))
        return noise if support is None else noise * support

    @staticmethod
    def _mean_spread(spread: Tensor, cohorts: Cohorts) -> Tensor:
        """What clients of different layer weights would add up to between them `[runs, size]`."""
        squares = spread.square() * cohorts.present.unsqueeze(-1)
        counts = cohorts.participants.unsqueeze(-1)
        return torch.where(counts > 0, squares.sum(1) / counts.clamp_min(1), 1.0).sqrt()  # noise also where nobody is

    def _upload_noise(self, cohorts: Cohorts, draw: Draw) -> Tensor:
        """Every client's own noise `[runs, width, size]`, on what it uploads."""
        multiplier = cohorts.noise_multiplier.unsqueeze(-1).expand(cohorts.present.shape)
        if cohorts.budget_ratio is not None and self._recipe.mechanism.exact_risk:
            multiplier = multiplier / cohorts.budget_ratio.clamp(LEAST_RATIO, 1.0)
        std = cohorts.clip.unsqueeze(-1) * multiplier * cohorts.present
        if self._config.placement != "local":
            std = std / cohorts.participants.clamp_min(1).sqrt().unsqueeze(-1)
        noise = std.unsqueeze(-1) * draw(True)
        spread = self._spread(cohorts)
        noise = noise if spread is None else noise * spread
        return noise if cohorts.uploaded is None else noise * cohorts.uploaded

    def _with_empty_cohorts(self, total: Tensor, cohorts: Cohorts, draw: Draw) -> Tensor:
        """Sums of the clients' own noise `[runs, size]`; where there is no client, the server's: silence would tell."""
        empty = cohorts.participants == 0
        if not bool(empty.any()):
            return total
        return torch.where(empty.unsqueeze(-1), self._sum_noise(cohorts, None, draw), total)

    def _expected_noise(self, cohorts: Cohorts) -> Tensor:
        """Norm that the noise of the sum should have, without a word on who took part `[runs]`."""
        expected = torch.full_like(cohorts.participants, self._config.cohort)
        std = noise_std(self._config.placement, cohorts.clip, cohorts.noise_multiplier, expected)
        squares = torch.ones(1, self._model.size, device=std.device)
        if cohorts.layer_weights is not None and cohorts.layer_weights.shape[1] == 1:
            spread = self._spread(cohorts)
            assert spread is not None
            squares = spread.squeeze(1).square()
        support = self._public_support(cohorts)
        squares = squares if support is None else squares * support
        return std * squares.sum(-1).sqrt()

    # ---------------------------------------------------------------- aggregation and accounts

    def _sharers(self, cohorts: Cohorts) -> Tensor | None:
        """Clients that upload each coordinate `[runs, size]`; None where all do."""
        if self._recipe.aggregation.divide_by != "count" or cohorts.uploaded is None:
            return None
        present = cohorts.present.to(cohorts.uploaded.dtype).unsqueeze(-1)
        return (cohorts.uploaded * present).sum(1)

    def effective_factor(self, samples: Tensor, uploaded: Tensor | None, layer_weights: Tensor | None) -> float:
        """By what part the real noise of one run's cohort falls short of Cσ/m against the mean.

        σ·√(Σw²)/(√m·max w) for weights w, σ·√(k/m) where only k clients noise a coordinate, less where their layer
        weights differ, and the length that a clip per coordinate lets through.

        Args:
            samples: training samples of its clients `[clients]`.
            uploaded: what each uploads `[clients, size]`; None for everything.
            layer_weights: squared share of C of each layer `[clients, layers]`; None where all clients have the same.
        """
        factor = 1.0
        if len(samples) and self._config.placement != "local":  # there every upload has noise enough of its own
            factor = 1 / math.sqrt(float(self._precisions(samples, uploaded, layer_weights).max()))
        if self._recipe.mechanism.clip == "coordinates":
            factor *= math.sqrt(self._clamp_size / self._model.size)
        return factor

    def _precisions(self, samples: Tensor, uploaded: Tensor | None, layer_weights: Tensor | None) -> Tensor:
        """Squared distance by which each client moves the sum, in units of the noise and of 1/σ² `[clients]`."""
        recipe, clients, blocks = self._recipe, len(samples), len(self._blocks)
        present = torch.ones(1, clients, dtype=torch.bool, device=samples.device)
        squares = recipe.aggregation.client_weights(samples.unsqueeze(0), present).squeeze(0).square()
        if recipe.mechanism.upload_noise and recipe.sparsification.uncovered:
            return torch.full_like(squares, clients)  # some coordinate may be kept, and noised, by a single client
        if layer_weights is None:
            layer_weights = torch.full((clients, blocks), 1 / blocks, device=samples.device)
        precisions = torch.zeros_like(squares)
        for index, block in enumerate(self._blocks):
            noise = squares * blocks * layer_weights[:, index] / clients
            by_coordinate = noise.sum().unsqueeze(0)
            if uploaded is not None and recipe.mechanism.upload_noise:
                by_coordinate = noise @ uploaded[:, block]
                by_coordinate = by_coordinate[uploaded[:, block].sum(0) > 0]
            if len(by_coordinate):
                precisions += squares * layer_weights[:, index] / by_coordinate.min()
        return precisions
