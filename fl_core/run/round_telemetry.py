"""Telemetry of a round: noised means of what its clients know, where the round has paid for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.privacy.mechanism import noised_mean
from fl_core.privacy.telemetry import TELEMETRY, Witness, figures_of
from fl_core.recipes.clipping import layer_norms
from fl_core.run.cohort import Cohort
from fl_core.run.draws import Draws
from fl_core.run.release import RoundRelease
from fl_core.run.simulation import Simulation
from fl_core.run.state import RunState


class RoundTelemetry:
    """Clients of a round as witnesses of it."""

    def __init__(self, simulation: Simulation, state: RunState, cohort: Cohort, clip: Tensor):
        """Take the round's cohort, the state that it starts from, and C `[runs]`."""
        self._simulation, self._state, self._cohort, self._clip = simulation, state, cohort, clip

    def released(
        self,
        bought: Mapping[str, FloatArray],
        std: Mapping[str, Tensor],
        draws: Draws,
        ran: BoolArray,
        shares: Tensor | None,
        update: Tensor,
        trained: Tensor,
        released: RoundRelease,
        finite: Tensor,
    ) -> dict[str, Tensor]:
        """Release the noised means, each with noise of its own; a client whose training diverged adds nothing.

        Args:
            bought: noise multipliers of what is paid for `[runs]`, by name.
            std: standard deviations of the noise of their sums, of sensitivity 1 `[runs]`.
            draws: noise streams of the round.
            ran: runs that take part `[runs]`.
            shares: weight of each client `[runs, clients]`, its part of C; None for 1.
            update, trained: of the cohort `[rows, size]`.
            released: of the updates.
            finite: clients whose training did not diverge `[rows]`.
        """
        if not bought:
            return {}
        layers = tuple(span.name for span in self._simulation.model.layers)
        sizes = [len(layers) if TELEMETRY[name].per_layer else 1 for name in bought]
        rows = ran & np.any([noise > 0 for noise in bought.values()], axis=0)
        normal = draws.normal("telemetry", rows, (sum(sizes),)).split(sizes, dim=-1)
        witness = self._witness(update, trained, released)
        weights, expected = self._weights(shares)
        figures: dict[str, Tensor] = {}
        for name, noise in zip(bought, normal, strict=True):
            values = TELEMETRY[name].contributions(witness) * (finite * weights).unsqueeze(-1)
            mean = noised_mean(self._cohort.scatter(values), expected, std[name], noise)
            figures |= figures_of(name, mean, layers)
        return figures

    def _witness(self, update: Tensor, trained: Tensor, released: RoundRelease) -> Witness:
        """Gather what the cohort's clients know of this round; scores are computed once, and only if asked for."""
        simulation, cohort, place = self._simulation, self._cohort, (self._cohort.run, self._cohort.place)

        def norms() -> Tensor:
            clipped = layer_norms(simulation.model, torch.nan_to_num(update)) * released.clipped.factors[place]
            return clipped / self._clip[cohort.run].unsqueeze(-1)

        @cache
        def scores() -> tuple[Tensor, Tensor]:
            models = torch.nan_to_num(simulation.viewed(self._state, trained, cohort.run))
            return simulation.holdout_scores(models, cohort.run, cohort.client)

        return Witness(released.clipped.within[place], norms, scores)

    def _weights(self, shares: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight of each client in a noised mean `[rows]`, and what a cohort's are expected to sum to `[runs]`."""
        config, device = self._simulation.config, self._simulation.device
        if shares is None:
            expected = torch.full((self._simulation.runs,), config.cohort, device=device)
            return torch.ones(len(self._cohort.run), device=device), expected
        expected = shares.sum(-1) * config.cohort / config.clients
        return shares[self._cohort.run, self._cohort.client], expected
