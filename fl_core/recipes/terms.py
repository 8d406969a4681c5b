"""Terms of the local loss beside cross-entropy, as pure functions of one client's tensors.

Each takes the loss so far and returns the new one. Norms are safe at zero, where their gradient is zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from typing_extensions import override

from fl_core.base.bounds import Bounds, check_numbers
from fl_core.base.errors import require_name
from fl_core.base.libraries import Tensor, functional, torch
from fl_core.recipes.parts import SHARE, WEIGHT

Context = Mapping[str, Tensor]
"""One client's tensors of this round: `start` (the vector that the phase starts from), `clip_norm` `[]`, and entries of
other parts. Executors may map a leading client dimension over every entry."""

TEMPERATURE = Bounds(0.01, 1000, "beyond, the softened probabilities are one or all classes alike")

Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Logits `[batch, classes]` from model parameters `[size]`, images `[batch, channels, height, width]`, and the factors
`[batch, units]` of the units that dropout scales, or None."""


class Batch(NamedTuple):
    """A minibatch on its way through the loss.

    Attributes:
        labels: `[batch]`.
        logits: of the client's present vector `[batch, classes]`.
        parameters: the present vector `[size]` (longer where the method adds coordinates).
        support: 1 on the coordinates in use `[size]`, or None where all are.
        context: the client's tensors; with a `teacher` in it, also its `teacher_logits` `[batch, classes]`.
        tensors: stretches of the network's parameter tensors.
    """

    labels: Tensor
    logits: Tensor
    parameters: Tensor
    support: Tensor | None
    context: Context
    tensors: tuple[slice, ...] = ()


def safe_norm(vector: Tensor) -> Tensor:
    """Compute the Euclidean norm of the last dimension, with gradient 0 at 0."""
    return vector.square().sum(-1).clamp_min(1e-24).sqrt()


@dataclass(frozen=True)
class Term(ABC):
    """A term of the loss.

    Attributes:
        weight: its factor, at least 0.
        bounds: ranges of its numbers, by field.
    """

    kind: ClassVar[str] = ""
    bounds: ClassVar[Mapping[str, Bounds]] = {"weight": WEIGHT}
    needs: ClassVar[tuple[str, ...]] = ()
    """Names of the context's entries that it reads."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, self.bounds, f"{self.kind}.")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the context's entries that it reads with its settings."""
        return self.needs

    @abstractmethod
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        """Add the term to the loss of a minibatch."""


@dataclass(frozen=True)
class Proximal(Term):
    """weight·‖w − θ_g‖²: pulls a client's model to the server's (mean-regularised multi-task learning)."""

    kind: ClassVar[str] = "proximal"
    needs: ClassVar[tuple[str, ...]] = ("anchor",)

    weight: float = 0.1

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        anchor = batch.context["anchor"]
        return loss + self.weight * (batch.parameters[..., : anchor.shape[-1]] - anchor).square().sum(-1)


@dataclass(frozen=True)
class BoundedNorm(Term):
    """weight/2·max(0, ‖Δ‖² − C²): keeps the update within the clip norm (BLUR)."""

    kind: ClassVar[str] = "bounded-norm"
    needs: ClassVar[tuple[str, ...]] = ("clip_norm",)

    weight: float = 0.1

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        excess = (batch.parameters - batch.context["start"]).square().sum(-1) - batch.context["clip_norm"].square()
        return loss + self.weight / 2 * excess.clamp_min(0)


OVER = {
    "own": "the coordinates that the step moves, from where they started",
    "all": "all coordinates, from the received model, the norms of the tensors added up (FedDPA's program)",
}


@dataclass(frozen=True)
class Constraint(Term):
    """A term of the length of the local change.

    Attributes:
        over: one of `OVER`, the change that is measured.
    """

    over: str = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name(f"{self.kind}.over", self.over, OVER)

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (*self.needs, "anchor") if self.over == "all" else self.needs

    def _from_received(self, batch: Batch) -> Tensor:
        """Add up the norms of the tensors' changes since the received model."""
        change = batch.parameters - batch.context["anchor"]
        return torch.stack([safe_norm(change[..., one]) for one in batch.tensors]).sum(0)


@dataclass(frozen=True)
class PersonalConstraint(Constraint):
    """weight/2·‖u − u^t‖₂ over the personal coordinates u (FedDPA eq. 9, FedGLP-ADP eq. 9; λ1)."""

    kind: ClassVar[str] = "personal-constraint"
    needs: ClassVar[tuple[str, ...]] = ("personal",)

    weight: float = 0.05

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        if self.over == "all":
            return loss + self.weight / 2 * self._from_received(batch)
        change = (batch.parameters - batch.context["start"]) * batch.context["personal"]
        return loss + self.weight / 2 * safe_norm(change)


@dataclass(frozen=True)
class SharedConstraint(Constraint):
    """weight/2·|‖v − v^t‖₂ − C| over the shared coordinates v (FedDPA eq. 11, FedGLP-ADP eq. 10; λ2)."""

    kind: ClassVar[str] = "shared-constraint"
    needs: ClassVar[tuple[str, ...]] = ("personal", "clip_norm")

    weight: float = 0.1

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        if self.over == "all":
            return loss + self.weight / 2 * (self._from_received(batch) - batch.context["clip_norm"]).abs()
        change = batch.parameters - batch.context["start"]
        if "personal" in batch.context:  # else all coordinates are shared, as in the ablation without personalization
            change = change * (1 - batch.context["personal"])
        return loss + self.weight / 2 * (safe_norm(change) - batch.context["clip_norm"]).abs()


@dataclass(frozen=True)
class AdaptiveNorm(Term):
    """weight/2·|‖(θ − θ^0)⊙M‖₂ − C| over the coordinates in use (DP-pFedDSU eq. 10, "dynamic adaptive norm"; λ)."""

    kind: ClassVar[str] = "adaptive-norm"
    needs: ClassVar[tuple[str, ...]] = ("clip_norm",)

    weight: float = 0.2

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        change = batch.parameters - batch.context["start"]
        if batch.support is not None:
            change = change[..., : batch.support.shape[-1]] * batch.support
        return loss + self.weight / 2 * (safe_norm(change) - batch.context["clip_norm"]).abs()


@dataclass(frozen=True)
class Distillation(Term):
    """weight·T²·KL(teacher ‖ student), the teacher being the client's previous local model (pFedSD).

    A client that has no previous model yet trains on cross-entropy alone.
    """

    kind: ClassVar[str] = "distillation"
    needs: ClassVar[tuple[str, ...]] = ("teacher", "seen")

    weight: float = 1.0
    temperature: float = 3.0
    bounds: ClassVar[Mapping[str, Bounds]] = {"weight": WEIGHT, "temperature": TEMPERATURE}

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        teacher = batch.context["teacher_logits"]
        divergence = classical_divergence(teacher / self.temperature, batch.logits / self.temperature)
        return loss + batch.context["seen"] * self.weight * self.temperature**2 * divergence


@dataclass(frozen=True)
class DecoupledDistillation(Term):
    """α·loss + (1 − α)·T²·[TCKD + 𝒩·NCKD] from the client's previous local model (ACDP-pFSD eq. 6-9).

    TCKD compares the probability of the true class with that of all others, NCKD the others among themselves.

    Attributes:
        weight: 1 − α, the share of the distillation, in [0, 1].
        temperature: T.
        non_target: 𝒩, the weight of the non-target classes.
    """

    kind: ClassVar[str] = "decoupled-distillation"
    needs: ClassVar[tuple[str, ...]] = ("teacher", "seen")

    weight: float = 0.5
    temperature: float = 3.0
    non_target: float = 0.25
    bounds: ClassVar[Mapping[str, Bounds]] = {"weight": SHARE, "temperature": TEMPERATURE, "non_target": WEIGHT}

    @override
    def __call__(self, loss: Tensor, batch: Batch) -> Tensor:
        teacher = batch.context["teacher_logits"]
        target, others = decoupled_divergences(
            teacher / self.temperature, batch.logits / self.temperature, batch.labels
        )
        distilled = self.temperature**2 * (target + self.non_target * others)
        return loss + batch.context["seen"] * self.weight * (distilled - loss)


def classical_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Compute the mean KL(teacher ‖ student) over the batch, from logits `[batch, classes]`."""
    wanted, own = functional.log_softmax(teacher, -1), functional.log_softmax(student, -1)
    return (wanted.exp() * (wanted - own)).sum(-1).mean()


def decoupled_divergences(teacher: Tensor, student: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean TCKD and NCKD over the batch, from logits `[batch, classes]` and labels `[batch]` (eq. 6 and 7).

    KL(teacher ‖ student) = TCKD + (1 − p_t)·NCKD for each sample, p_t the teacher's probability of the true class.
    """
    column = labels.unsqueeze(-1)
    wanted, own = functional.log_softmax(teacher, -1), functional.log_softmax(student, -1)
    # In log space throughout: the others' probabilities are far below float32's resolution once a model is sure.
    hidden = torch.zeros_like(wanted).scatter(-1, column, -torch.inf)
    wanted_rest, own_rest = (wanted + hidden).logsumexp(-1), (own + hidden).logsumexp(-1)
    wanted_true, own_true = wanted.gather(-1, column).squeeze(-1), own.gather(-1, column).squeeze(-1)
    target = wanted_true.exp() * (wanted_true - own_true) + wanted_rest.exp() * (wanted_rest - own_rest)
    ratio = (wanted - wanted_rest.unsqueeze(-1)) - (own - own_rest.unsqueeze(-1))
    weights = (wanted + hidden - wanted_rest.unsqueeze(-1)).exp()  # 0 for the true class
    return target.mean(), (weights * ratio).sum(-1).mean()


TERMS: dict[str, type[Term]] = {
    term.kind: term
    for term in (
        Proximal,
        BoundedNorm,
        PersonalConstraint,
        SharedConstraint,
        AdaptiveNorm,
        Distillation,
        DecoupledDistillation,
    )
}


def find_term(name: str) -> Term:
    """Look up a loss term; it has its default settings.

    Raises:
        InputError: no term has that name.
    """
    require_name("loss term", name, TERMS)
    return TERMS[name]()
