"""Local objective of a client: its loss, and the phases of local training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fl_core.base.bounds import Bounds, check_numbers, count
from fl_core.base.errors import require_name
from fl_core.base.libraries import Tensor, functional
from fl_core.recipes.parts import STEPS, Part
from fl_core.recipes.terms import Batch, Context, Forward, PersonalConstraint, SharedConstraint, Term

__all__ = ["Context", "Forward", "Objective", "Phase", "Update", "cross_entropy"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the minibatch's mean cross-entropy; no label is ignored, which saves operations under a map."""
    # Few classes are the outer dimension in memory (see `Dense`); the softmax is several times faster across it.
    log_probabilities = functional.log_softmax(logits.mT, dim=-2)
    return -log_probabilities.gather(-2, labels.unsqueeze(-2)).mean()


@dataclass(frozen=True)
class Update:
    """One optimizer step per minibatch, on some coordinates of the client's vector.

    Attributes:
        terms: terms of the loss beside cross-entropy.
        trains: `all`, `head` or `body`; the rest of the vector stays as it is.
        only: `personal` or `shared` coordinates by the context's mask, or empty for all of the stretch.
        sharpness: radius ρ of sharpness-aware minimisation; 0 is the plain gradient.
        adaptive_sharpness: True to measure ρ relative to each coordinate's size (ASAM).
    """

    terms: tuple[Term, ...] = ()
    trains: str = "all"
    only: str = ""
    sharpness: float = 0.0
    adaptive_sharpness: bool = False

    def loss(self, batch: Batch) -> Tensor:
        """Compute the scalar loss of a minibatch."""
        loss = cross_entropy(batch.logits, batch.labels)
        for term in self.terms:
            loss = term(loss, batch)
        return loss

    @property
    def gradient_passes(self) -> int:
        """Number of forward and backward passes of one step."""
        return 2 if self.sharpness else 1


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: every minibatch goes through `updates` in order, each with its own optimizer state.

    Attributes:
        updates: the steps taken on each minibatch.
        work: length of the phase as a multiple of the configured local work, above 0.
        clamped: True to end every step by clamping each coordinate to the context's `radius` around the start.
    """

    updates: tuple[Update, ...] = (Update(),)
    work: float = 1.0
    clamped: bool = False


SCHEDULES = {
    "joint": "all trained coordinates at once",
    "head-only": "the head, on a frozen body",
    "head-then-body": "the head on a frozen body, then the body under a frozen head",
    "personal-then-shared": "per minibatch a step on the personal coordinates, then one on the shared ones",
    "personal-pass-then-shared": "all local work on the personal coordinates, then as much on the shared ones",
}
APART = ("personal-then-shared", "personal-pass-then-shared")
"""Those that need personal coordinates."""


@dataclass(frozen=True)
class Objective(Part):
    """The local training of a method.

    Attributes:
        schedule: one of `SCHEDULES`.
        terms: terms of the loss beside cross-entropy; in `head-then-body` of the body's phase only.
        sharpness, adaptive_sharpness: of sharpness-aware minimisation (`Update`).
        head_work: length of the head's phase as a multiple of the configured local work.
        clamp_count: M > 0 clamps every coordinate to ±C/√M around the start after each step (FedADDP); -1 takes the
            expected cohort for M; 0 does not clamp.
        dropout: False to train with all units of a network that has dropout.
    """

    kind: ClassVar[str] = "objective"
    bounds: ClassVar[Mapping[str, Bounds]] = {
        "sharpness": Bounds(0, 1000, "the radius is a distance between weights"),
        "head_work": STEPS,
        "clamp_count": count(-1, 1_000_000, "it is a number of clients, 0 for none or -1 for the expected cohort"),
    }

    schedule: str = "joint"
    terms: tuple[Term, ...] = field(default=())
    sharpness: float = 0.0
    adaptive_sharpness: bool = False
    head_work: float = 1.0
    clamp_count: int = 0
    dropout: bool = True

    def __post_init__(self) -> None:
        require_name("objective.schedule", self.schedule, SCHEDULES)
        check_numbers(self, self.bounds, "objective.")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of local training, in order."""
        sam: dict[str, Any] = {"sharpness": self.sharpness, "adaptive_sharpness": self.adaptive_sharpness}
        clamped = self.clamp_count != 0
        head = Phase((Update(trains="head"),), work=self.head_work)
        if self.schedule == "head-only":
            return (head,)
        if self.schedule == "head-then-body":
            return (head, Phase((Update(self.terms, "body", **sam),), clamped=clamped))
        if self.schedule in APART:
            shared = tuple(term for term in self.terms if not isinstance(term, PersonalConstraint))
            personal = tuple(term for term in self.terms if not isinstance(term, SharedConstraint))
            updates = (Update(personal, only="personal", **sam), Update(shared, only="shared", **sam))
            if self.schedule == "personal-then-shared":
                return (Phase(updates, clamped=clamped),)
            return tuple(Phase((one,), clamped=clamped) for one in updates)
        return (Phase((Update(self.terms, **sam),), clamped=clamped),)

    @property
    def needs(self) -> set[str]:
        """Names of the context's entries that the losses read, beside `start`."""
        names = {name for term in self.terms for name in term.reads}
        return names | ({"personal"} if self.schedule in APART else set())
