"""The kinds of personalization beside a fixed local part, and all of them by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fl_core.base.bounds import Bounds
from fl_core.base.errors import require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.models.layout import Layout
from fl_core.privacy.curves import EPSILON
from fl_core.recipes.masks import grow, normalise_per_tensor
from fl_core.recipes.parts import SAMPLES, SHARE, KnobRange
from fl_core.recipes.personalization import ClientView, Personalization, Start, Tensors


@dataclass(frozen=True)
class AdditiveHead(Personalization):
    """Logits φ(x)ᵀ(w + θ_i): a client's own head, zero at first, is added to the shared one (PPSGD).

    A vector without an addition is the shared model.
    """

    kind: ClassVar[str] = "additive-head"

    @property
    @override
    def judged_by_server(self) -> bool:
        return False

    @property
    @override
    def keeps_parameters(self) -> bool:
        return True

    @override
    def parameters(self, model: Layout, vector: Tensor) -> Tensor:
        if vector.shape[-1] == model.size:
            return vector
        head = vector[..., model.head.slice] + vector[..., model.size :]
        return torch.cat([vector[..., : model.head.start], head], dim=-1)

    @override
    def initial_state(self, model: Layout, server: Tensor) -> dict[str, Tensor]:
        own = {"own": server.clone()} if self.keeps_model else {}
        return own | {"added": torch.zeros_like(server[model.head.slice])}

    @override
    def begin(self, view: ClientView) -> Start:
        return Start(torch.cat([view.server, view.state["added"]], dim=-1), view.server)

    @override
    def end(self, model: Layout, vector: Tensor, start: Start) -> dict[str, Tensor]:
        own = {"own": self.parameters(model, vector)} if self.keeps_model else {}
        return own | {"added": vector[:, model.size :].clone()}

    @override
    def tested(self, model: Layout, server: Tensor, state: Tensors) -> Tensor:
        if self.keeps_model:
            return torch.cat([state["own"], torch.zeros_like(state["added"])], dim=-1)
        return torch.cat([server, state["added"]], dim=-1)


@dataclass(frozen=True)
class OwnModel(Personalization):
    """Keeps the local model that the client's last round ended with.

    Attributes:
        role: `teacher` (training starts from the server's model and may distil from the own one: pFedSD, ACDP-pFSD)
            or `start` (training starts from the own model and is pulled to the server's: multi-task learning).
    """

    kind: ClassVar[str] = "own-model"

    tests: str = "trained"
    role: str = "teacher"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("personalization.role", self.role, ("teacher", "start"))
        require(self.tests == "trained", "personalization.tests must be 'trained' where a client keeps its own model.")

    @property
    @override
    def provides(self) -> frozenset[str]:
        return frozenset({"teacher", "seen"} if self.role == "teacher" else ())

    @override
    def initial_state(self, model: Layout, server: Tensor) -> dict[str, Tensor]:
        return super().initial_state(model, server) | {"seen": torch.zeros((), device=server.device)}

    @override
    def begin(self, view: ClientView) -> Start:
        base = self._composed(view.model, view.server, view.state)
        shared = self.static_mask(view.model, base.device)
        if self.role == "start":
            return Start(view.state["own"], base, {"anchor": base}, shared)
        return Start(base, base, {"teacher": view.state["own"], "seen": view.state["seen"]}, shared)

    @override
    def end(self, model: Layout, vector: Tensor, start: Start) -> dict[str, Tensor]:
        return super().end(model, vector, start) | {"seen": torch.ones_like(vector[:, 0])}


@dataclass(frozen=True)
class FisherMask(Personalization):
    """Keeps the coordinates whose Fisher information is high; the others take the server's values (FedDPA).

    The information is measured at the client's last local model, min-max normalised per tensor (eq. 4-7).

    Attributes:
        threshold: τ in [0, 1]; coordinates at or above it are personal.
        samples: number of a client's samples that the information is measured on, at most; 0 takes all.
        update_from: `start`, for an update since the start of training, or `received`, since the received model
            (FedDPA's program), which then holds all that the personal coordinates differ by.
    """

    kind: ClassVar[str] = "fisher-mask"
    bounds: ClassVar[Mapping[str, Bounds]] = {"threshold": SHARE, "samples": SAMPLES}

    tests: str = "trained"
    threshold: float = 0.1
    samples: int = 0
    update_from: str = "start"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("personalization.update_from", self.update_from, ("start", "received"))
        require(self.tests == "trained", "personalization.tests must be 'trained' where a client keeps its own model.")

    @property
    @override
    def provides(self) -> frozenset[str]:
        return frozenset({"personal"})

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        summary = "Fisher threshold τ from which coordinates stay personal"
        return (KnobRange("personal_threshold", 0.0, 1.0, self.threshold, "linear", summary),)

    @override
    def begin(self, view: ClientView) -> Start:
        own = view.state["own"]
        information = normalise_per_tensor(view.fisher(own, self.samples), view.model.tensors)
        personal = (information >= view.knobs["personal_threshold"].unsqueeze(-1)).to(own.dtype)
        vector = torch.where(personal > 0, own, view.server)
        return Start(vector, vector if self.update_from == "start" else view.server, {"personal": personal})


@dataclass(frozen=True)
class GrowingMask(Personalization):
    """Makes more of each layer's coordinates personal in every round: those with the largest noised updates.

    FedGLP-ADP, section 4.1 and eq. 11: the share of each layer grows by p = β/T per round, up to
    β = limit·exp(noise_growth·(σ − σ₀)), with σ₀ the run's noise multiplier at `reference_epsilon`. The defaults of the
    knobs follow (`default_limit`).

    Attributes:
        limit: β₀ in [0, 1].
        noise_growth: a; 0 leaves β at β₀.
        reference_epsilon: ε whose noise multiplier is σ₀.
        mask_from: `aggregate` (one mask for all clients of a run, from the noised sum) or `uploads` (one per client,
            from its own noised upload, which must then be protected by itself).
    """

    kind: ClassVar[str] = "growing-mask"
    bounds: ClassVar[Mapping[str, Bounds]] = {
        "limit": SHARE,
        "noise_growth": Bounds(-100, 100, "it is an exponent per unit of the noise multiplier"),
        "reference_epsilon": EPSILON,
    }

    tests: str = "trained"
    limit: float = 0.3
    noise_growth: float = 0.2
    reference_epsilon: float = 6.0
    mask_from: str = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("personalization.mask_from", self.mask_from, ("aggregate", "uploads"))
        require(self.tests == "trained", "personalization.tests must be 'trained' where a client keeps its own model.")

    @property
    @override
    def provides(self) -> frozenset[str]:
        return frozenset({"personal"})

    @property
    @override
    def masks_uploads(self) -> bool:
        return self.mask_from == "uploads"

    @property
    @override
    def knobs(self) -> tuple[KnobRange, ...]:
        return (
            KnobRange("personal_limit", 0.0, 1.0, self.limit, "linear", "share β of a layer that may become personal"),
            KnobRange(
                "personal_rate", 1e-4, 0.2, 0.01, "log", "share p of a layer that becomes personal in this round"
            ),
        )

    @override
    def knob_defaults(self, noise: Callable[[float | None], float], rounds: int) -> dict[str, float]:
        limit = self.default_limit(noise(None), noise(self.reference_epsilon)) if self.noise_growth else self.limit
        return {"personal_limit": limit, "personal_rate": limit / rounds}

    def default_limit(self, noise_multiplier: float, reference: float) -> float:
        """Compute β of a run with noise multiplier σ, where σ₀ is the one at `reference_epsilon` (eq. 11)."""
        exponent = self.noise_growth * (noise_multiplier - reference)
        return min(1.0, self.limit * math.exp(min(exponent, 700.0)))

    @override
    def initial_state(self, model: Layout, server: Tensor) -> dict[str, Tensor]:
        own = {"own": server.clone()}
        return own | (self._no_mask(server) if self.masks_uploads else {})

    @override
    def initial_run_state(self, model: Layout, server: Tensor) -> dict[str, Tensor]:
        return {} if self.masks_uploads else self._no_mask(server)

    @staticmethod
    def _no_mask(server: Tensor) -> dict[str, Tensor]:
        return {"personal": torch.zeros_like(server), "grown": torch.zeros((), device=server.device)}

    @override
    def shared(self, state: Tensors) -> Tensor | None:
        if "personal" not in state:
            return None
        return 1 - state["personal"]

    @override
    def begin(self, view: ClientView) -> Start:
        personal = (view.state if self.masks_uploads else view.run)["personal"]
        vector = torch.where(personal > 0, view.state["own"], view.server)
        return Start(vector, vector, {"personal": personal}, 1 - personal)

    @override
    def after_release(
        self, model: Layout, state: Tensors, released: Tensor, knobs: Tensors, uploads: bool
    ) -> dict[str, Tensor]:
        if uploads != self.masks_uploads:
            return {}
        limit, rate = knobs["personal_limit"], knobs["personal_rate"]
        # A limit below the present share stops the growth; what is personal never becomes shared again.
        grown = torch.maximum(state["grown"], torch.minimum(state["grown"] + rate, limit))
        return {"personal": grow(state["personal"], released.abs(), grown, model.layers), "grown": grown}


PERSONALIZATIONS: dict[str, Personalization] = {
    "none": Personalization(),
    "local-head": Personalization(local="head"),
    "local-body": Personalization(local="body"),
    "local-model": Personalization(local="all"),
    "tuned-head": Personalization(adaptation="head"),
    "additive-head": AdditiveHead(),
    "own-model": OwnModel(),
    "multi-task": OwnModel(role="start", adaptation="all"),
    "fisher-mask": FisherMask(),
    "growing-mask": GrowingMask(),
}
