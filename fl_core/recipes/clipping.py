"""Clipping of the updates: which stretches are clipped to what, and the state that this follows from.

A kind of clipping is a class here and a line in `CLIPS`. Its settings are fields of `Mechanism` of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fl_core.base.libraries import Tensor, torch
from fl_core.models.layout import Layout
from fl_core.recipes.parts import KnobRange, Part, clamp_size

Tensors = Mapping[str, Tensor]
"""Run and client of each row, int64 `[rows]`."""
TRENDS = {"noised": "the noised aggregate's layer norms", "exact": "each client's exact layer norms"}


@dataclass(frozen=True)
class Clip(Part):
    """Clips each update as one vector to norm C; the base class of all kinds of clipping.

    Attributes:
        kind: name in `CLIPS`.
        summary: description for lists.
        private: False if nothing is clipped, nor noised.
        by_layer: True if releases are told layer by layer.
    """

    kind: ClassVar[str] = "global"
    summary: ClassVar[str] = "the update as one vector, to norm C"
    private: ClassVar[bool] = True
    by_layer: ClassVar[bool] = False

    def blocks(self, model: Layout) -> tuple[slice, ...]:
        """Cut the update into the stretches that are clipped by themselves."""
        return (slice(0, model.size),)

    def initial_run_state(self, model: Layout, like: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a run, without a leading dimension, on the device of `like`."""
        return {}

    def initial_client_state(self, model: Layout, like: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a client, likewise."""
        return {}

    def next_run_state(self, model: Layout, state: Tensors, released: Tensor) -> dict[str, Tensor]:
        """Update the runs' tensors `[runs, ...]` from their noised sums `[runs, size]`."""
        return {}

    def next_client_state(self, model: Layout, state: Tensors, updates: Tensor) -> dict[str, Tensor]:
        """Update the clients' tensors `[rows, ...]` from their exact updates `[rows, size]`, NaN where one diverged."""
        return {}

    def run_weights(self, state: Tensors, knobs: Tensors) -> Tensor | None:
        """Compute the squared share of C of each block `[runs, blocks]`; None where a run has none of its own."""
        return None

    def client_weights(self, state: Tensors) -> Tensor | None:
        """Compute the squared share of C of each block `[rows, blocks]` from what clients keep; None if all are alike.

        Args:
            state: the clients' tensors `[rows, ...]`.
        """
        return None

    def clamp(self, updates: Tensor, clip: Tensor, cohort: float) -> Tensor:
        """Bound the coordinates of updates `[runs, width, size]` before their norms are clipped to C `[runs]`."""
        return updates

    def norms(self, clip: Tensor, weights: Tensor | None) -> Tensor | None:
        """Compute the clip norms `[runs, width or 1, blocks]`; None where norms are not clipped.

        Args:
            clip: C `[runs]`.
            weights: squared share of C of each block `[runs, width or 1, blocks]`; None for one block.
        """
        norms = clip[:, None, None]
        return norms if weights is None else norms * weights.sqrt()

    def certified_share(self, size: int, cohort: float) -> float:
        """Share of C over the longest update of `size` coordinates that passes the clip."""
        return 1.0


@dataclass(frozen=True)
class NoClip(Clip):
    """Leaves updates as they are."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "no clip and no noise; certifies no epsilon"
    private: ClassVar[bool] = False

    @override
    def norms(self, clip: Tensor, weights: Tensor | None) -> Tensor | None:
        return None


@dataclass(frozen=True)
class LayerClip(Clip):
    """Clips each layer to norm C_l, with weights that follow the layers' norms (FedGLP-ADP, Algorithm 1).

    Attributes:
        log_odds_step: γ, by which a layer's log-odds move per round.
        trend_from: one of `TRENDS`.
    """

    kind: ClassVar[str] = "layers"
    summary: ClassVar[str] = "each layer to norm C_l = C·sqrt(w_l), with weights w_l that adapt and sum to 1"
    by_layer: ClassVar[bool] = True

    log_odds_step: float = 0.8
    trend_from: str = "noised"

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        summary = "relative weight of each layer in C², before they are made to sum to 1"
        return (KnobRange("layer_weights", 0.01, 1.0, 0.1, "log", summary, per_layer=True),)

    @property
    @override
    def uncovered(self) -> tuple[str, ...]:
        if self.trend_from == "noised":
            return ()
        return ("the direction in which each client's exact layer norms moved",)

    @override
    def blocks(self, model: Layout) -> tuple[slice, ...]:
        return tuple(span.slice for span in model.layers)

    @override
    def initial_run_state(self, model: Layout, like: Tensor) -> dict[str, Tensor]:
        return self._initial(model, like) if self.trend_from == "noised" else {}

    @override
    def initial_client_state(self, model: Layout, like: Tensor) -> dict[str, Tensor]:
        return self._initial(model, like) if self.trend_from == "exact" else {}

    @staticmethod
    def _initial(model: Layout, like: Tensor) -> dict[str, Tensor]:
        sizes = torch.tensor([span.stop - span.start for span in model.layers], dtype=torch.float32)
        return {
            "log_odds": torch.logit(sizes / sizes.sum(), eps=1e-6).to(like.device),
            "layer_norms": torch.zeros(len(sizes), device=like.device),
        }

    @override
    def next_run_state(self, model: Layout, state: Tensors, released: Tensor) -> dict[str, Tensor]:
        return self._next(model, state, released) if self.trend_from == "noised" else {}

    @override
    def next_client_state(self, model: Layout, state: Tensors, updates: Tensor) -> dict[str, Tensor]:
        return self._next(model, state, torch.nan_to_num(updates)) if self.trend_from == "exact" else {}

    def _next(self, model: Layout, state: Tensors, updates: Tensor) -> dict[str, Tensor]:
        norms = layer_norms(model, updates)
        return {
            "log_odds": moved_log_odds(state["log_odds"], norms > state["layer_norms"], self.log_odds_step),
            "layer_norms": norms,
        }

    @override
    def run_weights(self, state: Tensors, knobs: Tensors) -> Tensor | None:
        if "layer_weights" in knobs:  # a controller's
            weights = knobs["layer_weights"]
            return weights / weights.sum(-1, keepdim=True)
        return layer_weights(state["log_odds"]) if self.trend_from == "noised" else None

    @override
    def client_weights(self, state: Tensors) -> Tensor | None:
        return layer_weights(state["log_odds"]) if self.trend_from == "exact" else None


@dataclass(frozen=True)
class CoordinateClip(Clip):
    """Clips each coordinate to C/√M (FedADDP), so that an update is no longer than C only where M is their number.

    Attributes:
        clamp_count: M; -1 takes the expected cohort.
    """

    kind: ClassVar[str] = "coordinates"
    summary: ClassVar[str] = "each coordinate to C/sqrt(M), which bounds the update by C only if M is their number"

    clamp_count: int = -1

    @property
    @override
    def uncovered(self) -> tuple[str, ...]:
        return ("updates longer than C: the clip per coordinate bounds their norm only by C·sqrt(size/M)",)

    @override
    def clamp(self, updates: Tensor, clip: Tensor, cohort: float) -> Tensor:
        radius = (clip / math.sqrt(clamp_size(self.clamp_count, cohort)))[:, None, None]
        return torch.where(torch.isfinite(updates), updates.clamp(-radius, radius), updates)

    @override
    def norms(self, clip: Tensor, weights: Tensor | None) -> Tensor | None:
        return None

    @override
    def certified_share(self, size: int, cohort: float) -> float:
        return math.sqrt(clamp_size(self.clamp_count, cohort) / size)


CLIPS: dict[str, type[Clip]] = {one.kind: one for one in (NoClip, Clip, LayerClip, CoordinateClip)}


def layer_norms(model: Layout, updates: Tensor) -> Tensor:
    """Compute the norm of each layer's part of `[..., size]`, `[..., layers]`."""
    return torch.stack([torch.linalg.vector_norm(updates[..., span.slice], dim=-1) for span in model.layers], dim=-1)


def moved_log_odds(log_odds: Tensor, grew: Tensor, step: float) -> Tensor:
    """Move h_l by ±γ: up where the layer's update norm grew, down elsewhere (FedGLP-ADP, Algorithm 1, lines 2-7)."""
    return log_odds + step * torch.where(grew, 1.0, -1.0)


def layer_weights(log_odds: Tensor) -> Tensor:
    """Scale the sigmoids of the log-odds to sum 1: clip weights `[..., layers]` (Algorithm 1, lines 8-12)."""
    odds = torch.sigmoid(log_odds.to(torch.float64)).clamp_min(1e-12)
    return (odds / odds.sum(-1, keepdim=True)).to(log_odds.dtype)
