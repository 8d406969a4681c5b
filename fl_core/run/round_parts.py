"""What a round is given by the ledgers, and what its clients make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fl_core.base.arrays import BoolArray, FloatArray
from fl_core.recipes.personalization import Start
from fl_core.training.work import LocalWork


@dataclass(frozen=True)
class Charged:
    """A round that the ledgers were charged for.

    Attributes:
        ran: runs that take part `[runs]`.
        noise: noise multipliers by release `[runs]`.
        lasting: factor on C with which each client's own budget lasts for all rounds `[runs, clients]`, 0 once it is
            spent; None if clients have no budgets of their own.
    """

    ran: BoolArray
    noise: Mapping[str, FloatArray]
    lasting: FloatArray | None


@dataclass(frozen=True)
class LocalTraining:
    """Outcome of a cohort's local training.

    Attributes:
        start: what it started from.
        work: what was done.
        trained: vectors afterwards `[rows, ...]`.
        update: of the shared model, NaN throughout where it is not finite `[rows, size]`.
        finite: clients whose training did not diverge `[rows]` (bool).
        loss: mean training loss `[rows]`.
    """

    start: Start
    work: LocalWork
    trained: Tensor
    update: Tensor
    finite: Tensor
    loss: Tensor
