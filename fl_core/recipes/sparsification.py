"""Sparsification: the coordinates of the update that a client uploads.

It comes before the clip, so the sensitivity stays the clip norm whatever is kept (the smaller sensitivity that
ADP-PFL's Theorems 1 and 2 claim does not hold). A mask that depends on a client's data is as private as the update:
unless every coordinate is noised, its support reveals data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fl_core.base.bounds import Bounds, check_numbers, count
from fl_core.base.errors import require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.models.layout import Layout, Span
from fl_core.recipes.masks import keep_largest, normalise_per_tensor
from fl_core.recipes.parts import SAMPLES, KnobRange, Part
from fl_core.recipes.terms import Context

DEFAULT_SPARSE_LAYERS = 4
"""k in DP-pFedDSU's experiments."""


@dataclass(frozen=True)
class Trained:
    """Inputs of a client's choice of coordinates.

    Attributes:
        model: the network.
        update: `[rows, size]`.
        parameters: trained models `[rows, size]`.
        context: tensors of the clients' round.
        sparsity: share of coordinates to keep `[rows]`.
        fisher: Fisher information at models `[rows, size]` on so many of the clients' own samples (0: all).
        draws: uniform draws of each client's own `[rows, size]`.
    """

    model: Layout
    update: Tensor
    parameters: Tensor
    context: Context
    sparsity: Tensor
    fisher: Callable[[Tensor, int], Tensor]
    draws: Callable[[], Tensor]


@dataclass(frozen=True)
class Sparsification(Part):
    """Uploads every shared coordinate; the base class of all sparsifications."""

    kind: ClassVar[str] = "none"

    @property
    def is_public(self) -> bool:
        """True if everybody may know which coordinates are kept, so that the others need no noise."""
        return False

    @property
    def noises_kept_only(self) -> bool:
        """True if noise is left out where nothing is uploaded."""
        return self.is_public

    @property
    def masks_forward(self) -> bool:
        """True if models compute under the mask, in training and in tests."""
        return False

    def initial_run_state(self, like: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a run: where tests compute under a public mask, its last sparsity."""
        if not (self.masks_forward and self.is_public):
            return {}
        last = next(knob.default for knob in self.knobs if knob.name == "sparsity")
        return {"sparsity": torch.full((), last, device=like.device)}

    def check(self, model: Layout) -> None:
        """Refuse a model without the layers that the part asks for."""

    def public_mask(self, model: Layout, server: Tensor, sparsity: Tensor, draws: Tensor | None) -> Tensor | None:
        """Compute the mask of the coordinates in use in this round `[rows, size]` from released values; None for all.

        Args:
            model: the network.
            server: broadcast models `[rows, size]`.
            sparsity: share to keep `[rows]`.
            draws: uniform draws of the round `[rows, size]`, where `draws_mask` asks for them.
        """
        return None

    @property
    def draws_mask(self) -> bool:
        """True if the server draws a mask at random."""
        return False

    def support(self, model: Layout, parameters: Tensor, context: Context) -> Tensor | None:
        """Compute the mask `[size]` that one client's forward pass runs under; None for the whole model."""
        return None

    def view(self, model: Layout, parameters: Tensor, support: Tensor) -> Tensor:
        """Compute the parameters of a forward pass under a mask."""
        return parameters * support

    def kept(self, trained: Trained) -> Tensor | None:
        """Mask what each client keeps of its update `[rows, size]`; None for everything."""
        return trained.context.get("support")


@dataclass(frozen=True)
class Chosen(Sparsification):
    """Keeps a share of the coordinates, the sparsity S; the base class of all that do.

    Attributes:
        sparsity: share kept, in (0, 1].
    """

    bounds: ClassVar[Mapping[str, Bounds]] = {
        "sparsity": Bounds(1e-6, 1, "less keeps nothing of any model"),
        "samples": SAMPLES,
        "layers": count(0, 1000, "no model has more"),
    }

    sparsity: float = 0.5

    def __post_init__(self) -> None:
        check_numbers(self, self.bounds, "sparsification.")

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        return (KnobRange("sparsity", 0.01, 1.0, self.sparsity, "log", "share of the coordinates that is kept"),)


@dataclass(frozen=True)
class TopK(Chosen):
    """Keeps the largest coordinates of the update (LUS; ADP-PFL Fig. 5)."""

    kind: ClassVar[str] = "top-k"

    @override
    def kept(self, trained: Trained) -> Tensor | None:
        return keep_largest(trained.update.abs(), trained.sparsity)


@dataclass(frozen=True)
class TopWeights(Chosen):
    """Keeps the coordinates whose trained weights are largest (ADP-PFL Fig. 5, "Top-k")."""

    kind: ClassVar[str] = "top-weights"

    @override
    def kept(self, trained: Trained) -> Tensor | None:
        return keep_largest(trained.parameters.abs(), trained.sparsity)


@dataclass(frozen=True)
class FisherTop(Chosen):
    """Keeps the coordinates with the highest Fisher information, min-max normalised per tensor (ADP-PFL eq. 13-16).

    Attributes:
        samples: number of a client's samples that the information is measured on, at most; 0 takes all.
    """

    kind: ClassVar[str] = "fisher"

    sparsity: float = 0.2
    samples: int = 0

    @override
    def kept(self, trained: Trained) -> Tensor | None:
        information = normalise_per_tensor(trained.fisher(trained.parameters, self.samples), trained.model.tensors)
        return keep_largest(information, trained.sparsity)


@dataclass(frozen=True)
class RandomMask(Chosen):
    """Keeps coordinates that are drawn anew in every round.

    A mask of the server's is the same for all clients and known to everybody, so that the other coordinates need no
    noise (Fed-SMP). Masks of the clients' own depend on no data either, but nobody else knows them: as with any choice
    of a client's, every coordinate is noised, and the sensitivity is the clip norm (ADP-PFL Fig. 5, "Random").

    Attributes:
        drawn_by: `server` or `client`.
    """

    kind: ClassVar[str] = "random"

    drawn_by: str = "server"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("sparsification.drawn_by", self.drawn_by, ("server", "client"))

    @property
    @override
    def is_public(self) -> bool:
        return self.drawn_by == "server"

    @property
    @override
    def draws_mask(self) -> bool:
        return self.is_public

    @override
    def public_mask(self, model: Layout, server: Tensor, sparsity: Tensor, draws: Tensor | None) -> Tensor | None:
        return None if draws is None else keep_largest(draws, sparsity)

    @override
    def kept(self, trained: Trained) -> Tensor | None:
        return super().kept(trained) if self.is_public else keep_largest(trained.draws(), trained.sparsity)


@dataclass(frozen=True)
class Reparameterized(Chosen):
    """Keeps the largest weights of the extractor's last convolutions, and trains and tests under the mask (DP-pFedDSU).

    Earlier layers stay dense (eq. 6-8). Where a model has no convolution, the layers before the head take their place.
    With `mask_from` `step` there is no knob: the mask has a fixed size, because programs are traced.

    Attributes:
        layers: k, the number of the extractor's last convolutions that are sparse; 0 takes four, or all where fewer.
        mask_from: `broadcast` (from the received model, a function of what is released) or `step` (from the client's
            own weights at every step, Algorithm 1).
        straight_through: True for a gradient that ignores the mask; otherwise masked weights have none.
    """

    kind: ClassVar[str] = "reparameterized"

    sparsity: float = 0.05
    layers: int = 0
    mask_from: str = "broadcast"
    straight_through: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("sparsification.mask_from", self.mask_from, ("broadcast", "step"))

    @property
    @override
    def is_public(self) -> bool:
        return self.mask_from == "broadcast"

    @property
    @override
    def noises_kept_only(self) -> bool:
        return True

    @property
    @override
    def masks_forward(self) -> bool:
        return True

    @override
    def check(self, model: Layout) -> None:
        self.sparse_layers(model)

    @property
    @override
    def uncovered(self) -> tuple[str, ...]:
        if self.is_public:
            return ()
        return ("which weights each client kept: the mask is a function of its data, and the noise shows its support",)

    def sparse_layers(self, model: Layout) -> tuple[Span, ...]:
        """List the layers that are sparse."""
        body = [span for span in model.convolutions if span.stop <= model.head.start]
        candidates = body or [span for span in model.layers if span != model.head]
        require(
            self.layers <= len(candidates),
            f"sparsification.layers is {self.layers}, but model '{model.name}' has {len(candidates)} such layers "
            "before its head.",
        )
        return tuple(candidates[-(self.layers or DEFAULT_SPARSE_LAYERS) :])

    @override
    def public_mask(self, model: Layout, server: Tensor, sparsity: Tensor, draws: Tensor | None) -> Tensor | None:
        return self._mask(model, server, sparsity) if self.is_public else None

    @override
    def support(self, model: Layout, parameters: Tensor, context: Context) -> Tensor | None:
        if self.is_public:
            return context["support"]
        return self._mask(model, parameters.detach()[None], self.sparsity)[0]

    @override
    def view(self, model: Layout, parameters: Tensor, support: Tensor) -> Tensor:
        masked = parameters * support
        # The value is `masked` either way; detached, the difference passes gradients to masked weights as if unmasked.
        return parameters + (masked - parameters).detach() if self.straight_through else masked

    @override
    def kept(self, trained: Trained) -> Tensor | None:
        if self.is_public:
            return trained.context["support"]
        return self._mask(trained.model, trained.parameters, self.sparsity)

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        return super().knobs if self.is_public else ()

    def _mask(self, model: Layout, parameters: Tensor, sparsity: Tensor | float) -> Tensor:
        """Mask models `[rows, size]`: their largest weights, layer by layer."""
        mask = torch.ones_like(parameters)
        pieces, position = [], 0
        for span in self.sparse_layers(model):
            scores = parameters[:, span.slice].abs()
            if isinstance(sparsity, float):
                count = max(1, round(sparsity * scores.shape[-1]))
                # In a traced program the number kept is a constant; a threshold keeps ties, all of them.
                least = scores.topk(count, dim=-1).values[:, -1:]
                piece = (scores >= least).to(parameters.dtype)
            else:
                piece = keep_largest(scores, sparsity)
            pieces += [mask[:, position : span.start], piece]
            position = span.stop
        return torch.cat([*pieces, mask[:, position:]], dim=-1)


SPARSIFICATIONS: dict[str, Sparsification] = {
    part.kind: part for part in (Sparsification(), TopK(), TopWeights(), FisherTop(), RandomMask(), Reparameterized())
}
