"""Clients' parts of a round's budget: equal, by a measured risk, or by public budgets of their own.

A kind is a class here and a line in `CLIENT_BUDGETS`. Its settings are fields of `Mechanism` of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fl_core.base.libraries import Tensor, torch
from fl_core.privacy.noise_model import LEAST_RATIO
from fl_core.recipes.parts import KnobRange, Part

Tensors = Mapping[str, Tensor]
RISK_SHARE = 0.05
"""Share of a round's privacy that the noised mean risk costs."""
RISK_SPAN = 4.0
"""Decades around 1 within which a risk is told apart; what is released is its logarithm over this, in [-1, 1]."""


@dataclass(frozen=True)
class BudgetView:
    """The clients of a round, for their parts of its budget.

    Attributes:
        run, client: int64 `[rows]`.
        runs: persistent tensors of the runs `[runs, ...]`.
        own: persistent tensors of these clients `[rows, ...]`.
        everybody: gathers a persistent tensor of all clients `[runs, clients, ...]` by name.
        knobs: values of the knobs `[runs]`.
        lasting: part of C with which each client's own budget lasts `[runs, clients]`; None where it has none.
    """

    run: Tensor
    client: Tensor
    runs: Tensors
    own: Tensors
    everybody: Callable[[str], Tensor]
    knobs: Tensors
    lasting: Tensor | None


@dataclass(frozen=True)
class ClientBudget(Part):
    """Gives all clients the whole of the round's budget; the base class of all kinds.

    Attributes:
        kind: name in `CLIENT_BUDGETS`.
        summary: description for lists.
        measures_risk: True if every client's Jacobian risk is measured after training.
    """

    kind: ClassVar[str] = "uniform"
    summary: ClassVar[str] = "equal for all"
    measures_risk: ClassVar[bool] = False

    client_budget_strength: float = 1.0

    @property
    def charged_share(self) -> float:
        """Share of a round's privacy that its release costs."""
        return 0.0

    @property
    def scales_noise(self) -> bool:
        """True if a client with a part of the budget adds more noise; otherwise its clip norm is the smaller."""
        return False

    def initial_run_state(self, like: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a run, without a leading dimension, on the device of `like`."""
        return {}

    def initial_client_state(self, like: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a client, likewise."""
        return {}

    def ratio(self, view: BudgetView) -> Tensor | None:
        """Compute each client's part of the budget `[rows]`; None for all of it."""
        return None


@dataclass(frozen=True)
class OwnBudget(ClientBudget):
    """Gives each client the part of C with which its own public budget lasts."""

    kind: ClassVar[str] = "own"
    summary: ClassVar[str] = "in proportion to each client's own public budget (client_epsilon)"

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        return (_strength_knob(self.client_budget_strength),)

    @override
    def ratio(self, view: BudgetView) -> Tensor | None:
        return None if view.lasting is None else view.lasting[view.run, view.client]


@dataclass(frozen=True)
class RiskBudget(ClientBudget):
    """Gives clients with a high Jacobian risk less (ADP-PFL eq. 12).

    Attributes:
        exact_risk: True to compare clients by their exact risks; otherwise with a noised, charged mean.
        risk_order: 2 for the Jacobian of the gradient by the samples, 1 for that of the logits.
    """

    kind: ClassVar[str] = "risk"
    summary: ClassVar[str] = "less for clients with a high Jacobian risk (ADP-PFL eq. 12)"
    measures_risk: ClassVar[bool] = True

    exact_risk: bool = False
    risk_order: int = 2

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        return (_strength_knob(self.client_budget_strength),)

    @property
    @override
    def releases(self) -> tuple[str, ...]:
        return () if self.exact_risk else ("noised mean risk",)

    @property
    @override
    def uncovered(self) -> tuple[str, ...]:
        return ("each client's exact Jacobian risk, by the noise it asks for",) if self.exact_risk else ()

    @property
    @override
    def charged_share(self) -> float:
        return 0.0 if self.exact_risk else RISK_SHARE

    @property
    @override
    def scales_noise(self) -> bool:
        return self.exact_risk

    @override
    def initial_run_state(self, like: Tensor) -> dict[str, Tensor]:
        return {"risk_reference": torch.zeros((), device=like.device)}

    @override
    def initial_client_state(self, like: Tensor) -> dict[str, Tensor]:
        return {"risk": torch.zeros((), device=like.device)}

    @override
    def ratio(self, view: BudgetView) -> Tensor | None:
        own, reference = view.own["risk"], view.runs["risk_reference"]
        if self.exact_risk:
            risks = view.everybody("risk")
            known = torch.where(risks > 0, risks, torch.inf).amin(-1)
            reference = torch.where(torch.isfinite(known), known, 0.0)
        ratio = (reference[view.run] / own.clamp_min(10**-RISK_SPAN)).clamp(LEAST_RATIO, 1.0)
        ratio = (ratio ** view.knobs["client_budget_strength"][view.run]).clamp(LEAST_RATIO, 1.0)
        return torch.where((own > 0) & (reference[view.run] > 0), ratio, 1.0)


def kept_risk(risk: Tensor) -> dict[str, Tensor]:
    """Make the clients' persistent tensors from their measured risks `[rows]`."""
    return {"risk": risk.clamp(10**-RISK_SPAN, 10**RISK_SPAN)}


def risk_scores(kept: Tensors) -> Tensor:
    """Compute each client's contribution to the mean risk, its logarithm in [-1, 1] `[rows]`; 0 where unknown."""
    own = kept["risk"]
    return torch.where(own > 0, own.clamp_min(10**-RISK_SPAN).log10() / RISK_SPAN, 0.0).clamp(-1, 1)


def risk_reference(mean: Tensor) -> Tensor:
    """Convert a noised mean score `[runs]` to the risk that clients compare theirs with."""
    return torch.as_tensor(10 ** (RISK_SPAN * mean.clamp(-1, 1)))


def _strength_knob(default: float) -> KnobRange:
    summary = "exponent κ of the ratio of risks or budgets in a client's share of the round"
    return KnobRange("client_budget_strength", 0.0, 2.0, default, "linear", summary)


CLIENT_BUDGETS: dict[str, type[ClientBudget]] = {one.kind: one for one in (ClientBudget, RiskBudget, OwnBudget)}
