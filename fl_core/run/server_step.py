"""Step of the server in a round: figures of what was released, and the state that follows, from public values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fl_core.base.arrays import FloatArray
from fl_core.models.layout import Layout
from fl_core.recipes.recipe import Recipe
from fl_core.run.charging import UPDATE
from fl_core.run.config import FederationConfig
from fl_core.run.release import RoundRelease
from fl_core.run.release_figures import layer_figures, release_figures
from fl_core.run.state import RunState


@dataclass(frozen=True)
class ServerStep:
    """What a server makes of a release, whoever trained.

    Attributes:
        config: settings that the runs share.
        recipe: the method.
        model: layout of the parameters.
        state: what the round started from.
        knobs: values of every knob `[runs]` (`[runs, layers]` where it has one per layer).
        noise: noise multipliers by release `[runs]`.
        ran: runs that took part `[runs]` (bool).
    """

    config: FederationConfig
    recipe: Recipe
    model: Layout
    state: RunState
    knobs: Mapping[str, Tensor]
    noise: Mapping[str, FloatArray]
    ran: Tensor

    def moved(self, released: RoundRelease) -> Tensor:
        """Move the server models by the mean updates `[runs, size]`."""
        return self.state.server + self.knobs["server_learning_rate"].unsqueeze(-1) * released.mean

    def figures(self, released: RoundRelease, moved: Tensor) -> dict[str, Any]:
        """Compute the public metrics of a release by name `[runs]`."""
        cohort = self.config.cohort
        figures: dict[str, Any] = {
            "server_learning_rate": self.knobs["server_learning_rate"],
            "server_norm": torch.linalg.vector_norm(moved, dim=-1),
            **release_figures(released.total, self.state.last_release, released.expected_noise, cohort),
        }
        if self.recipe.mechanism.clipping.by_layer:
            figures |= layer_figures(self.model, released.total, cohort)
        if self.recipe.private:
            figures |= {"clip_norm": self.knobs["clip_norm"], "noise_multiplier": self.noise[UPDATE]}
        return figures

    def advance(self, released: RoundRelease, moved: Tensor) -> RunState:
        """Update the server models, their averages and the released state of the runs that ran."""
        state, recipe, model = self.state, self.recipe, self.model
        kept = recipe.personalization.after_release(model, state.runs, released.total, self.knobs, uploads=False)
        kept |= recipe.mechanism.clipping.next_run_state(model, state.runs, released.total)
        if "sparsity" in state.runs:
            kept["sparsity"] = self.knobs["sparsity"]
        return replace(
            state,
            runs=state.runs | {name: self.where_ran(value, state.runs[name]) for name, value in kept.items()},
            average=self.where_ran(self._average(moved), state.average),
            server=self.where_ran(moved, state.server),
            last_release=self.where_ran(released.total, state.last_release),
        )

    def where_ran(self, value: Tensor, before: Tensor) -> Tensor:
        """Take a value `[runs, ...]` for runs that ran, and the one before for the others."""
        return torch.where(match(self.ran, value), value, before)

    def _average(self, moved: Tensor) -> Tensor:
        """Compute the exponential average of the server models `[runs, size]`; at weight 1 it is the latest model."""
        weight, average = self.knobs["average_weight"].unsqueeze(-1), self.state.average
        return torch.where(weight >= 1, moved, average + weight * (moved - average))


def match(mask: Tensor, value: Tensor) -> Tensor:
    """Shape a mask `[rows]` to broadcast against `[rows, ...]`."""
    return mask.view(-1, *[1] * (value.dim() - 1))
