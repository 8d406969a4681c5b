"""Mechanism: protection of the updates by clipping and noise, and the split of the budget over rounds and clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

from typing_extensions import override

from fl_core.base.bounds import Bounds, check_numbers, count
from fl_core.base.errors import require_name
from fl_core.recipes.client_budgets import CLIENT_BUDGETS, ClientBudget
from fl_core.recipes.clipping import CLIPS, TRENDS, Clip
from fl_core.recipes.parts import KnobRange, Part

BUDGETS = {
    "uniform": "equally over the rounds",
    "increasing": "exp(−β(1 − (t/T)²)) times an equal share of what is left (ADP-PFL, as it must read)",
    "printed": "the same times t, as ADP-PFL's eq. 11 is printed; clipped to what is left",
}
NOISE_KNOBS = {"sound": ("budget_pace",), "as-published": ("budget_pace", "telemetry_share")}
"""By guarantee, the knobs that decide a round's joint noise multiplier as certified; all others only split it, or scale
signal and noise alike. As published, the update may carry less noise than is claimed, and telemetry all of it, so that
the split between them counts too."""
KNOBS = (
    KnobRange("clip_norm", 0.1, 8.0, 1.0, "log", "clip norm C of the client updates"),
    KnobRange("budget_pace", 0.01, 100.0, 1.0, "log", "this round's budget over an equal share of what is left"),
    KnobRange("telemetry_share", 0.01, 0.5, 0.1, "log", "share of the round's privacy spent on telemetry"),
)
"""Knobs of every private mechanism."""


@dataclass(frozen=True)
class Mechanism(Part):
    """Clip and noise of a method.

    Attributes:
        clip: one of `CLIPS`.
        log_odds_step: γ, by which a layer's log-odds move per round (FedGLP-ADP, Algorithm 1); `layers` only.
        trend_from: one of `TRENDS`; `layers` only.
        clamp_count: M of the clip `coordinates`; -1 takes the expected cohort.
        upload_noise: True if each client noises its own upload, and only the coordinates that it uploads.
        budget: one of `BUDGETS`, the rounds' shares of the budget where no controller decides.
        budget_growth: β of those that increase; below 0 they fall.
        client_budget: one of `CLIENT_BUDGETS`.
        client_budget_strength: κ, exponent of a client's ratio of risks or budgets; 0 is uniform, 1 the paper. At 0 no
            risk is measured or paid for.
        risk_order: derivatives of the network in a risk, 2 (ADP-PFL eq. 7 and 8) or 1.
        exact_risk: True if clients are compared by their exact risks; otherwise with a noised, charged mean.
    """

    kind: ClassVar[str] = "mechanism"
    bounds: ClassVar[Mapping[str, Bounds]] = {
        "log_odds_step": Bounds(0, 100, "a step of more puts all weight on one layer"),
        "budget_growth": Bounds(-100, 100, "more leaves nothing for all rounds but the last, or the first"),
        "risk_order": count(1, 2),
        "client_budget_strength": Bounds(0, 10, "it is an exponent, and the paper's is 1"),
        "clamp_count": count(1, 1_000_000, "it is a number of clients", also=(-1,)),
    }

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
    risk_order: int = 2

    def __post_init__(self) -> None:
        for name, allowed in (
            ("clip", CLIPS),
            ("trend_from", TRENDS),
            ("budget", BUDGETS),
            ("client_budget", CLIENT_BUDGETS),
        ):
            require_name(f"mechanism.{name}", getattr(self, name), allowed)
        check_numbers(self, self.bounds, "mechanism.")

    @property
    def clipping(self) -> Clip:
        """The kind of clipping, with its settings."""
        return _with_settings(CLIPS[self.clip], self)

    @property
    def budgeting(self) -> ClientBudget:
        """The division of a round's budget between the clients, with its settings."""
        idle = not self.private or (self.client_budget == "risk" and self.client_budget_strength == 0)
        return _with_settings(CLIENT_BUDGETS["uniform" if idle else self.client_budget], self)

    @property
    def private(self) -> bool:
        """True if updates are clipped and noised."""
        return CLIPS[self.clip].private

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        if not self.private:
            return ()
        return (*KNOBS, *self.clipping.knobs, *self.budgeting.knobs)

    @property
    @override
    def releases(self) -> tuple[str, ...]:
        return self.budgeting.releases

    @property
    @override
    def uncovered(self) -> tuple[str, ...]:
        return (*self.clipping.uncovered, *self.budgeting.uncovered)

    def budget_share(self, round_index: int, rounds: int) -> float | None:
        """Choose the share of the remaining budget that a round spends `(0, 1]`; None for the uniform schedule.

        Args:
            round_index: rounds done before it.
            rounds: T.
        """
        if self.budget == "uniform":
            return None
        pace = exponential_pace(round_index + 1, rounds, self.budget_growth, self.budget == "printed")
        return min(1.0, pace / (rounds - round_index))


Settings = TypeVar("Settings", Clip, ClientBudget)


def _with_settings(kind: type[Settings], mechanism: Mechanism) -> Settings:
    """Make an object of a kind from those settings of the mechanism that it has."""
    return kind(**{one.name: getattr(mechanism, one.name) for one in fields(kind)})


def exponential_pace(t: int, rounds: int, growth: float, printed: bool = False) -> float:
    """Compute the budget of round t, from 1 to T, over an equal share of what is left.

    It is exp(−β(1 − (t/T)²)), as printed times t: ADP-PFL, eq. 10 and 11. Without the factor t no round passes its
    equal share (eq. 9) and the last one takes all.
    """
    pace = math.exp(-growth * (1 - (t / rounds) ** 2))
    return t * pace if printed else pace


MECHANISMS: dict[str, Mechanism] = {kind: Mechanism(clip=kind) for kind in CLIPS}
