"""Telemetry of a round: noised means of what its clients know, where the round has paid for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.privacy.mechanism import Clipped, noised_mean
from fl_core.privacy.telemetry import TELEMETRY, Witness, figures_of
from fl_core.recipes.clipping import layer_norms
from fl_core.run.cohort import Cohort
from fl_core.run.draws import Draws
from fl_core.run.simulation import Simulation
from fl_core.run.state import RunState


class RoundTelemetry:
    """Clients of a round as witnesses of it."""

    def __init__(self, simulation: Simulation, state: RunState, cohort: Cohort, clip: Tensor):
        """Take the round's cohort, the state that it starts from, and C `[runs]`."""
        self._simulation, self._state, self._cohort, self._clip = simulation, state, cohort, clip

    def contributions(
        self, names: Iterable[str], update: Tensor, trained: Tensor, clipped: Clipped, counted: Tensor
    ) -> dict[str, Tensor]:
        """Compute what each client of the cohort adds to the sums, of norm at most 1, by name `[rows, values]`.

        Args:
            names: telemetry that is paid for.
            update, trained: of the cohort `[rows, size]`.
            clipped: clip of the updates, laid out by cohort.
            counted: weight of each client, its part of C, and 0 where its training diverged `[rows]`.
        """
        witness = self._witness(update, trained, clipped)
        return {name: TELEMETRY[name].contributions(witness) * counted.unsqueeze(-1) for name in names}

    def _witness(self, update: Tensor, trained: Tensor, clipped: Clipped) -> Witness:
        """Gather what the cohort's clients know of this round; scores are computed once, and only if asked for."""
        simulation, cohort, place = self._simulation, self._cohort, (self._cohort.run, self._cohort.place)

        def norms() -> Tensor:
            shortened = layer_norms(simulation.model, torch.nan_to_num(update)) * clipped.factors[place]
            return shortened / self._clip[cohort.run].unsqueeze(-1)

        @cache
        def scores() -> tuple[Tensor, Tensor]:
            models = torch.nan_to_num(simulation.viewed(self._state, trained, cohort.run))
            return simulation.holdout_scores(models, cohort.run, cohort.client, cohort.on_host)

        return Witness(clipped.within[place], norms, scores)


def released_telemetry(
    contributed: Mapping[str, Tensor],
    bought: Mapping[str, FloatArray],
    std: Mapping[str, Tensor],
    expected: Tensor,
    draws: Draws,
    ran: BoolArray,
    layers: Sequence[str],
) -> dict[str, Tensor]:
    """Release the noised means, each with noise of its own, as metrics by name `[runs]`.

    Args:
        contributed: what the clients add to the sums, by name `[runs, width, values]`.
        bought: noise multipliers of what is paid for `[runs]`, by name.
        std: standard deviations of the noise of their sums, of sensitivity 1 `[runs]`.
        expected: what the clients' weights are expected to sum to `[runs]`.
        draws: noise streams of the round.
        ran: runs that take part `[runs]`.
        layers: names of the model's.
    """
    if not bought:
        return {}
    sizes = [len(layers) if TELEMETRY[name].per_layer else 1 for name in bought]
    rows = ran & np.any([noise > 0 for noise in bought.values()], axis=0)
    normal = draws.normal("telemetry", rows, (sum(sizes),)).split(sizes, dim=-1)
    figures: dict[str, Tensor] = {}
    for name, noise in zip(bought, normal, strict=True):
        figures |= figures_of(name, noised_mean(contributed[name], expected, std[name], noise), tuple(layers))
    return figures
