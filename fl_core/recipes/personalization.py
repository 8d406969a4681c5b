"""What stays on the client between rounds, and which model a round, and a test, starts from.

Every function takes tensors of stacked clients (`[rows, ...]`) and returns new ones. A client's *vector* is what local
training moves: the model's parameters, and behind them what a method adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fl_core.base.errors import require, require_count, require_name, require_positive
from fl_core.models.model import Model
from fl_core.recipes.masks import grow, normalise_per_tensor
from fl_core.recipes.objective import Phase, Update
from fl_core.recipes.parts import KnobRange, Part

Tensors = Mapping[str, Tensor]
Fisher = Callable[[Tensor, int], Tensor]
"""Diagonal Fisher information `[rows, size]` of clients' models `[rows, size]` on so many of their own training samples
(0: all)."""

TESTS = {
    "start": "the model that the next round would start from",
    "trained": "the local model as it was right after training",
}


@dataclass(frozen=True)
class View:
    """What a client's round is made from; one row per client.

    Attributes:
        model: the network.
        server: received parameters `[rows, size]`.
        state: the clients' persistent tensors.
        run: the runs' persistent tensors, one row per client.
        knobs: values of the knobs `[rows]`.
        fisher: Fisher information on the clients' own samples.
    """

    model: Model
    server: Tensor
    state: Tensors
    run: Tensors
    knobs: Tensors
    fisher: Fisher


@dataclass(frozen=True)
class Start:
    """How a client's round begins.

    Attributes:
        vector: what training starts from `[rows, vector size]`.
        reference: what the uploaded update is measured from `[rows, size]`.
        context: tensors for the losses.
        shared: mask of what is exchanged, `[rows, size]` or `[size]`; None for everything.
    """

    vector: Tensor
    reference: Tensor
    context: dict[str, Tensor] = field(default_factory=dict)
    shared: Tensor | None = None


@dataclass(frozen=True)
class Personalization(Part):
    """A fixed part of the model that never leaves the client.

    Attributes:
        adaptation: `none`, or `head`: the head of a throw-away copy is tuned before it is tested; or `all`.
        adaptation_work: length of that, as a multiple of the configured local work.
        tests: one of `TESTS`.
        local: `none`, `head`, `body` or `all`: the part that each client keeps to itself (`all`: nothing is shared).
    """

    kind: ClassVar[str] = "fixed-part"

    adaptation: str = "none"
    adaptation_work: float = 1.0
    tests: str = "start"
    local: str = "none"

    def __post_init__(self) -> None:
        require_name("personalization.tests", self.tests, TESTS)
        for name in ("adaptation", "local"):
            allowed = ("none", "head", "all") if name == "adaptation" else ("none", "head", "body", "all")
            require_name(f"personalization.{name}", getattr(self, name), allowed)
        require_positive("personalization.adaptation_work", self.adaptation_work)
        require(
            self.local == "none" or self.kind == "fixed-part",
            f"personalization.local is '{self.local}', but '{self.kind}' has no such part; leave it at none.",
        )

    @property
    def adaptation_phases(self) -> tuple[Phase, ...]:
        """Phases run on a copy of the model before it is tested on the client; never kept, never uploaded."""
        if self.adaptation == "none":
            return ()
        return (Phase((Update(trains=self.adaptation),), work=self.adaptation_work),)

    @property
    def shares_nothing(self) -> bool:
        """Whether the whole model stays local."""
        return self.local == "all"

    @property
    def judged_by_server(self) -> bool:
        """Whether the server's own model is what the method is for; it is incomplete or beside the point otherwise."""
        return self.local == "none" and self.tests == "start"

    @property
    def keeps_model(self) -> bool:
        """Whether a client keeps its whole model after training, as `own`."""
        return self.tests == "trained"

    @property
    def provides(self) -> frozenset[str]:
        """Entries of the context that `begin` gives to the losses."""
        return frozenset()

    @property
    def masks_uploads(self) -> bool:
        """Whether each client has a mask of its own, made from its own noised uploads."""
        return False

    def knob_defaults(self, noise: Callable[[float | None], float], rounds: int) -> dict[str, float]:
        """Defaults of knobs that depend on the run.

        Args:
            noise: the run's uniform noise multiplier at an ε (None: at its own).
            rounds: T.
        """
        return {}

    def parameters(self, model: Model, vector: Tensor) -> Tensor:
        """The model's parameters `[..., size]` of a client's vector."""
        return vector

    def initial_state(self, model: Model, server: Tensor) -> dict[str, Tensor]:
        """The persistent tensors of a client that has not taken part yet, from the initial model `[size]`."""
        state = {"own": server.clone()} if self.keeps_model else {}
        if self.local != "none":
            state["local"] = server[model.span(self.local).slice].clone()
        return state

    def initial_run_state(self, model: Model, server: Tensor) -> dict[str, Tensor]:
        """Persistent tensors of a whole run, without a leading dimension."""
        return {}

    def begin(self, view: View) -> Start:
        """How the round begins."""
        vector = self._composed(view.model, view.server, view.state)
        return Start(vector, vector, {}, self.static_mask(view.model, vector.device))

    def end(self, model: Model, vector: Tensor, start: Start) -> dict[str, Tensor]:
        """The persistent tensors after local training ended at `vector`."""
        state = {"own": vector[:, : model.size].clone()} if self.keeps_model else {}
        if self.local != "none":
            state["local"] = vector[:, model.span(self.local).slice].clone()
        return state

    def tested(self, model: Model, server: Tensor, state: Tensors) -> Tensor:
        """The vectors `[rows, vector size]` that are tested on the clients."""
        return state["own"] if self.keeps_model else self._composed(model, server, state)

    def static_mask(self, model: Model, device: torch.device) -> Tensor | None:
        """1 on the coordinates that any client exchanges `[size]`; None for all of them."""
        if self.local == "none":
            return None
        mask = torch.ones(model.size, device=device)
        mask[model.span(self.local).slice] = 0
        return mask

    def after_release(
        self, model: Model, state: Tensors, released: Tensor, knobs: Tensors, uploads: bool
    ) -> dict[str, Tensor]:
        """New tensors of the run (`uploads` False, rows are runs) or of its clients (True) from noised updates."""
        return {}

    def _composed(self, model: Model, server: Tensor, state: Tensors) -> Tensor:
        """The server's model with the client's part in its place `[rows, size]`."""
        if self.local == "none":
            return server
        span = model.span(self.local)
        return torch.cat([server[:, : span.start], state["local"], server[:, span.stop :]], dim=-1)


@dataclass(frozen=True)
class AdditiveHead(Personalization):
    """Logits φ(x)ᵀ(w + θ_i): a client's own head, zero at first, is added to the shared one (PPSGD)."""

    kind: ClassVar[str] = "additive-head"

    @property
    def judged_by_server(self) -> bool:
        """See the base class."""
        return False

    def parameters(self, model: Model, vector: Tensor) -> Tensor:
        """See the base class; a vector without an addition is the shared model."""
        if vector.shape[-1] == model.size:
            return vector
        head = vector[..., model.head.slice] + vector[..., model.size :]
        return torch.cat([vector[..., : model.head.start], head], dim=-1)

    def initial_state(self, model: Model, server: Tensor) -> dict[str, Tensor]:
        """See the base class."""
        own = {"own": server.clone()} if self.keeps_model else {}
        return own | {"added": torch.zeros_like(server[model.head.slice])}

    def begin(self, view: View) -> Start:
        """See the base class."""
        return Start(torch.cat([view.server, view.state["added"]], dim=-1), view.server)

    def end(self, model: Model, vector: Tensor, start: Start) -> dict[str, Tensor]:
        """See the base class."""
        own = {"own": self.parameters(model, vector)} if self.keeps_model else {}
        return own | {"added": vector[:, model.size :].clone()}

    def tested(self, model: Model, server: Tensor, state: Tensors) -> Tensor:
        """See the base class."""
        if self.keeps_model:
            return torch.cat([state["own"], torch.zeros_like(state["added"])], dim=-1)
        return torch.cat([server, state["added"]], dim=-1)


@dataclass(frozen=True)
class OwnModel(Personalization):
    """A client keeps the local model it ended its last round with.

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
    def provides(self) -> frozenset[str]:
        """See the base class."""
        return frozenset({"teacher", "seen"} if self.role == "teacher" else ())

    def initial_state(self, model: Model, server: Tensor) -> dict[str, Tensor]:
        """See the base class."""
        return {"own": server.clone(), "seen": torch.zeros((), device=server.device)}

    def begin(self, view: View) -> Start:
        """See the base class."""
        if self.role == "start":
            return Start(view.state["own"], view.server, {"anchor": view.server})
        return Start(view.server, view.server, {"teacher": view.state["own"], "seen": view.state["seen"]})

    def end(self, model: Model, vector: Tensor, start: Start) -> dict[str, Tensor]:
        """See the base class."""
        return {"own": vector.clone(), "seen": torch.ones_like(vector[:, 0])}


@dataclass(frozen=True)
class FisherMask(Personalization):
    """Coordinates whose Fisher information is high keep the client's values, the rest take the server's (FedDPA).

    The information is measured at the client's last local model, min-max normalised per tensor (eq. 4-7).

    Attributes:
        threshold: τ in [0, 1]; coordinates at or above it are personal.
        samples: how many of a client's samples the information is measured on, at most; 0 takes all.
    """

    kind: ClassVar[str] = "fisher-mask"

    tests: str = "trained"
    threshold: float = 0.1
    samples: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("personalization.samples", self.samples, least=0)
        require(
            0 <= self.threshold <= 1,
            f"personalization.threshold is {self.threshold}, but it must lie in [0, 1].",
        )
        require(self.tests == "trained", "personalization.tests must be 'trained' where a client keeps its own model.")

    @property
    def provides(self) -> frozenset[str]:
        """See the base class."""
        return frozenset({"personal"})

    @property
    def knobs(self) -> tuple[KnobRange, ...]:
        """See the base class."""
        summary = "Fisher threshold τ from which coordinates stay personal"
        return (KnobRange("personal_threshold", 0.0, 1.0, self.threshold, "linear", summary),)

    def begin(self, view: View) -> Start:
        """See the base class."""
        own = view.state["own"]
        information = normalise_per_tensor(view.fisher(own, self.samples), view.model.tensors)
        personal = (information >= view.knobs["personal_threshold"].unsqueeze(-1)).to(own.dtype)
        vector = torch.where(personal > 0, own, view.server)
        return Start(vector, vector, {"personal": personal})


@dataclass(frozen=True)
class GrowingMask(Personalization):
    """In every round some more of each layer's coordinates become personal: those with the largest noised updates.

    FedGLP-ADP, section 4.1 and eq. 11: the share of each layer grows by p = β/T per round, up to
    β = limit·exp(noise_growth·(σ − σ₀)), with σ₀ the run's noise multiplier at `reference_epsilon`.

    Attributes:
        limit: β₀ in [0, 1].
        noise_growth: a; 0 leaves β at β₀.
        reference_epsilon: ε whose noise multiplier is σ₀.
        mask_from: `aggregate` (one mask for all clients of a run, from the noised sum) or `uploads` (one per client,
            from its own noised upload, which must then be protected by itself).
    """

    kind: ClassVar[str] = "growing-mask"

    tests: str = "trained"
    limit: float = 0.3
    noise_growth: float = 0.2
    reference_epsilon: float = 6.0
    mask_from: str = "aggregate"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.limit <= 1, f"personalization.limit is {self.limit}, but it must lie in [0, 1].")
        require(
            math.isfinite(self.noise_growth),
            f"personalization.noise_growth is {self.noise_growth}, but it must be finite.",
        )
        require_positive("personalization.reference_epsilon", self.reference_epsilon)
        require_name("personalization.mask_from", self.mask_from, ("aggregate", "uploads"))
        require(self.tests == "trained", "personalization.tests must be 'trained' where a client keeps its own model.")

    @property
    def provides(self) -> frozenset[str]:
        """See the base class."""
        return frozenset({"personal"})

    @property
    def masks_uploads(self) -> bool:
        """See the base class."""
        return self.mask_from == "uploads"

    @property
    def knobs(self) -> tuple[KnobRange, ...]:
        """See the base class; their defaults follow the run's noise and length (`default_limit`)."""
        return (
            KnobRange("personal_limit", 0.0, 1.0, self.limit, "linear", "share β of a layer that may become personal"),
            KnobRange(
                "personal_rate", 1e-4, 0.2, 0.01, "log", "share p of a layer that becomes personal in this round"
            ),
        )

    def knob_defaults(self, noise: Callable[[float | None], float], rounds: int) -> dict[str, float]:
        """See the base class."""
        limit = self.default_limit(noise(None), noise(self.reference_epsilon)) if self.noise_growth else self.limit
        return {"personal_limit": limit, "personal_rate": limit / rounds}

    def default_limit(self, noise_multiplier: float, reference: float) -> float:
        """β of a run with noise multiplier σ, where σ₀ is the one at `reference_epsilon` (eq. 11)."""
        exponent = self.noise_growth * (noise_multiplier - reference)
        return min(1.0, self.limit * math.exp(min(exponent, 700.0)))

    def initial_state(self, model: Model, server: Tensor) -> dict[str, Tensor]:
        """See the base class."""
        own = {"own": server.clone()}
        return own | (self._no_mask(server) if self.masks_uploads else {})

    def initial_run_state(self, model: Model, server: Tensor) -> dict[str, Tensor]:
        """See the base class."""
        return {} if self.masks_uploads else self._no_mask(server)

    @staticmethod
    def _no_mask(server: Tensor) -> dict[str, Tensor]:
        return {"personal": torch.zeros_like(server), "grown": torch.zeros((), device=server.device)}

    def begin(self, view: View) -> Start:
        """See the base class."""
        personal = (view.state if self.masks_uploads else view.run)["personal"]
        vector = torch.where(personal > 0, view.state["own"], view.server)
        return Start(vector, vector, {"personal": personal}, 1 - personal)

    def after_release(
        self, model: Model, state: Tensors, released: Tensor, knobs: Tensors, uploads: bool
    ) -> dict[str, Tensor]:
        """See the base class."""
        if uploads != self.masks_uploads:
            return {}
        limit, rate = knobs["personal_limit"], knobs["personal_rate"]
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
