"""How updates are protected: what is clipped, how the noise is spread, and how the budget is split."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl_core.base.errors import require, require_name
from fl_core.models.model import Model
from fl_core.recipes.parts import KnobRange, Part

CLIPS = {
    "none": "no clip and no noise; certifies no epsilon",
    "global": "the update as one vector, to norm C",
    "layers": "each layer to norm C_l = C·sqrt(w_l), with weights w_l that adapt and sum to 1",
    "coordinates": "each coordinate to C/sqrt(M), which bounds the update by C only if M is their number (FedADDP)",
}
TRENDS = {"noised": "the noised aggregate's layer norms", "exact": "each client's exact layer norms"}
BUDGETS = {
    "uniform": "equally over the rounds",
    "increasing": "exp(−β(1 − (t/T)²)) times an equal share of what is left (ADP-PFL, as it must read)",
    "printed": "the same times t, as ADP-PFL's eq. 11 is printed; clipped to what is left",
}
CLIENT_BUDGETS = {
    "uniform": "equal for all",
    "risk": "less for clients with a high Jacobian risk (ADP-PFL eq. 12)",
    "own": "in proportion to each client's own public budget (client_epsilon)",
}
NOISE_KNOBS = {"sound": ("budget_pace",), "as-published": ("budget_pace", "telemetry_share")}
"""By guarantee, the knobs that decide a round's joint noise multiplier as certified; all others only split it, or scale
signal and noise alike. As published, the update may carry less noise than is claimed, and telemetry all of it, so that
the split between them counts too."""
RISK_SHARE = 0.05
"""Share of a round's privacy that the noised mean risk costs."""


@dataclass(frozen=True)
class Mechanism(Part):
    """Clip and noise of a method.

    Attributes:
        clip: one of `CLIPS`.
        log_odds_step: γ, by which a layer's log-odds move per round (FedGLP-ADP, Algorithm 1); `layers` only.
        trend_from: one of `TRENDS`; `layers` only.
        clamp_count: M of the clip `coordinates`; -1 takes the expected cohort.
        upload_noise: whether each client noises its own upload, and only the coordinates that it uploads.
        budget: one of `BUDGETS`, how the rounds share the budget where no controller decides.
        budget_growth: β of those that increase.
        client_budget: one of `CLIENT_BUDGETS`.
        client_budget_strength: κ, exponent of a client's ratio of risks or budgets; 0 is uniform, 1 the paper.
        exact_risk: whether clients are compared by their exact risks; otherwise with a noised, charged mean.
    """

    kind: ClassVar[str] = "mechanism"

    clip: str = "global"
    log_odds_step: float = 0.8
    trend_from: str = "noised"
    clamp_count: int = -1
    upload_noise: bool = False
    budget: str = "uniform"
    budget_growth: float = 2.0
    client_budget: str = "uniform"
    client_budget_strength: float = 1.0
    exact_risk: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("clip", CLIPS),
            ("trend_from", TRENDS),
            ("budget", BUDGETS),
            ("client_budget", CLIENT_BUDGETS),
        ):
            require_name(f"mechanism.{name}", getattr(self, name), allowed)
        for name in ("log_odds_step", "budget_growth", "client_budget_strength"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"mechanism.{name} is {value}, but it must be at least 0.")
        require(
            self.clamp_count == -1 or self.clamp_count > 0,
            f"mechanism.clamp_count is {self.clamp_count}, but it must be above 0, or -1 for the expected cohort.",
        )

    @property
    def private(self) -> bool:
        """Whether updates are clipped and noised at all."""
        return self.clip != "none"

    def blocks(self, model: Model) -> tuple[slice, ...]:
        """The stretches of the update that are clipped by themselves; together they cover it."""
        return tuple(span.slice for span in model.layers) if self.clip == "layers" else (slice(0, model.size),)

    @property
    def uses_risk(self) -> bool:
        """Whether clients' risks are measured."""
        return self.private and self.client_budget == "risk"

    @property
    def knobs(self) -> tuple[KnobRange, ...]:
        """See the base class."""
        if not self.private:
            return ()
        knobs = [
            KnobRange("clip_norm", 0.1, 8.0, 1.0, "log", "clip norm C of the client updates"),
            KnobRange(
                "budget_pace", 0.01, 100.0, 1.0, "log", "this round's budget over an equal share of what is left"
            ),
            KnobRange("telemetry_share", 0.01, 0.5, 0.1, "log", "share of the round's privacy spent on telemetry"),
        ]
        if self.clip == "layers":
            summary = "relative weight of each layer in C², before they are made to sum to 1"
            knobs.append(KnobRange("layer_weights", 0.01, 1.0, 0.1, "log", summary, per_layer=True))
        if self.client_budget != "uniform":
            summary = "exponent κ of the ratio of risks or budgets in a client's share of the round"
            knobs.append(KnobRange("client_budget_strength", 0.0, 2.0, self.client_budget_strength, "linear", summary))
        return tuple(knobs)

    @property
    def releases(self) -> tuple[str, ...]:
        """See the base class."""
        return ("noised mean risk",) if self.uses_risk and not self.exact_risk else ()

    @property
    def uncovered(self) -> tuple[str, ...]:
        """See the base class."""
        found = []
        if self.clip == "coordinates":
            found.append("updates longer than C: the clip per coordinate bounds their norm only by C·sqrt(size/M)")
        if self.clip == "layers" and self.trend_from == "exact":
            found.append("the direction in which each client's exact layer norms moved")
        if self.uses_risk and self.exact_risk:
            found.append("each client's exact Jacobian risk, by the noise it asks for")
        return tuple(found)

    def budget_share(self, round_index: int, rounds: int) -> float | None:
        """Share of the remaining budget that a round spends `(0, 1]`; None for the uniform schedule.

        Args:
            round_index: rounds done before it.
            rounds: T.
        """
        if self.budget == "uniform":
            return None
        pace = exponential_pace(round_index + 1, rounds, self.budget_growth, self.budget == "printed")
        return min(1.0, pace / (rounds - round_index))

    def initial_state(self, model: Model, like: Tensor) -> dict[str, Tensor]:
        """Persistent tensors of the layer weights, of a run or of a client, without a leading dimension."""
        if self.clip != "layers":
            return {}
        sizes = torch.tensor([span.stop - span.start for span in model.layers], dtype=torch.float32)
        return {
            "log_odds": torch.logit(sizes / sizes.sum(), eps=1e-6).to(like.device),
            "layer_norms": torch.zeros(len(sizes), device=like.device),
        }

    def next_state(self, model: Model, state: dict[str, Tensor], updates: Tensor) -> dict[str, Tensor]:
        """Log-odds and norms `[rows, layers]` after a round with these updates `[rows, size]`."""
        norms = layer_norms(model, updates)
        return {
            "log_odds": moved_log_odds(state["log_odds"], norms > state["layer_norms"], self.log_odds_step),
            "layer_norms": norms,
        }


def exponential_pace(t: int, rounds: int, growth: float, printed: bool = False) -> float:
    """Budget of round t, from 1 to T, over an equal share of what is left: exp(−β(1 − (t/T)²)), as printed times t.

    ADP-PFL, eq. 10 and 11. Without the factor t no round passes its equal share (eq. 9) and the last one takes all.
    """
    pace = math.exp(-growth * (1 - (t / rounds) ** 2))
    return t * pace if printed else pace


def layer_norms(model: Model, updates: Tensor) -> Tensor:
    """Norm of each layer's part of `[..., size]`, `[..., layers]`."""
    return torch.stack([torch.linalg.vector_norm(updates[..., span.slice], dim=-1) for span in model.layers], dim=-1)


def moved_log_odds(log_odds: Tensor, grew: Tensor, step: float) -> Tensor:
    """h_l ± γ: up where the layer's update norm grew, down elsewhere (FedGLP-ADP, Algorithm 1, lines 2-7)."""
    return log_odds + step * torch.where(grew, 1.0, -1.0)


def layer_weights(log_odds: Tensor) -> Tensor:
    """Clip weights `[..., layers]`, the sigmoids of the log-odds scaled to sum 1 (Algorithm 1, lines 8-12)."""
    odds = torch.sigmoid(log_odds.to(torch.float64)).clamp_min(1e-12)
    return (odds / odds.sum(-1, keepdim=True)).to(log_odds.dtype)


MECHANISMS: dict[str, Mechanism] = {
    "none": Mechanism(clip="none"),
    "global": Mechanism(),
    "layers": Mechanism(clip="layers"),
    "coordinates": Mechanism(clip="coordinates"),
}
