"""Personalization: what stays on the client between rounds, and the model that a round, and a test, starts from.

Every function takes tensors of stacked clients (`[rows, ...]`) and returns new ones. A client's *vector* is what local
training moves: the model's parameters, and behind them the coordinates that a method adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fl_core.base.bounds import Bounds, check_numbers
from fl_core.base.errors import require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.models.layout import Layout
from fl_core.recipes.objective import Phase, Update
from fl_core.recipes.parts import STEPS, Part

Tensors = Mapping[str, Tensor]
Fisher = Callable[[Tensor, int], Tensor]
"""Diagonal Fisher information `[rows, size]` of clients' models `[rows, size]` on so many of their own training samples
(0: all)."""

TESTS = {
    "start": "the model that the next round would start from",
    "trained": "the local model as it was right after training",
}


@dataclass(frozen=True)
class ClientView:
    """Inputs of a client's round; one row per client.

    Attributes:
        model: the network.
        server: received parameters `[rows, size]`.
        state: the clients' persistent tensors.
        run: the runs' persistent tensors, one row per client.
        knobs: values of the knobs `[rows]`.
        fisher: Fisher information on the clients' own samples.
    """

    model: Layout
    server: Tensor
    state: Tensors
    run: Tensors
    knobs: Tensors
    fisher: Fisher


@dataclass(frozen=True)
class Start:
    """Start of a client's round.

    Attributes:
        vector: vectors that training starts from `[rows, vector size]`.
        reference: parameters that the uploaded update is the difference to `[rows, size]`.
        context: tensors for the losses.
        shared: mask of the exchanged coordinates, `[rows, size]` or `[size]`; None for all of them.
    """

    vector: Tensor
    reference: Tensor
    context: dict[str, Tensor] = field(default_factory=dict)
    shared: Tensor | None = None


@dataclass(frozen=True)
class Personalization(Part):
    """Keeps a fixed part of the model on the client; the base class of all personalizations.

    Attributes:
        adaptation: part of a throw-away copy that is trained before the copy is tested: `none`, `head` or `all`.
        adaptation_work: length of that training, as a multiple of the configured local work.
        tests: one of `TESTS`.
        local: part that each client keeps to itself: `none`, `head`, `body`, `all` (nothing is shared), or layers: the
            last N as `N`, the first N as `first(N)`, or names joined by +, as `fc1+fc2`.
    """

    kind: ClassVar[str] = "fixed-part"
    bounds: ClassVar[Mapping[str, Bounds]] = {"adaptation_work": STEPS}

    adaptation: str = "none"
    adaptation_work: float = 1.0
    tests: str = "start"
    local: str = "none"

    def __post_init__(self) -> None:
        require_name("personalization.tests", self.tests, TESTS)
        require_name("personalization.adaptation", self.adaptation, ("none", "head", "all"))
        require(bool(self.local.strip()), "personalization.local is empty; write none, or the layers that stay local.")
        check_numbers(self, {**Personalization.bounds, **self.bounds}, "personalization.")
        require(
            self.local == "none" or self.kind in ("fixed-part", "own-model"),
            f"personalization.local is '{self.local}', but '{self.kind}' has no such part; leave it at none.",
        )
        require(
            self.local != "all" or self.kind == "fixed-part",
            f"personalization.local is 'all', but '{self.kind}' learns from what others share; name a part.",
        )

    def check(self, model: Layout) -> None:
        """Refuse local layers that a network does not have.

        Raises:
            InputError: there are none of a name, or not so many.
        """
        model.spans(self.local)

    @property
    def adaptation_phases(self) -> tuple[Phase, ...]:
        """Phases run on a copy of the model before it is tested on the client; never kept, never uploaded."""
        if self.adaptation == "none":
            return ()
        return (Phase((Update(trains=self.adaptation),), work=self.adaptation_work),)

    @property
    def shares_nothing(self) -> bool:
        """True if the whole model stays local."""
        return self.local == "all"

    @property
    def judged_by_server(self) -> bool:
        """True if the server's own model is the method's product; otherwise it is incomplete or beside the point."""
        return self.local == "none" and self.tests == "start"

    @property
    def keeps_model(self) -> bool:
        """True if a client keeps its whole model after training, as `own`."""
        return self.tests == "trained"

    @property
    def keeps_parameters(self) -> bool:
        """True if a client keeps parameters of its own, so that it is tested with a model of its own."""
        return self.keeps_model or self.local != "none"

    def shared(self, state: Tensors) -> Tensor | None:
        """Compute the mask of the coordinates that runs, or clients, exchange by their state; None for all.

        Args:
            state: the tensors of runs or of clients `[rows, ...]`.
        """
        return None

    @property
    def provides(self) -> frozenset[str]:
        """Names of the context's entries that `begin` gives to the losses."""
        return frozenset()

    @property
    def masks_uploads(self) -> bool:
        """True if each client has a mask of its own, made from its own noised uploads."""
        return False

    def knob_defaults(self, noise: Callable[[float | None], float], rounds: int) -> dict[str, float]:
        """Compute the defaults of knobs that depend on the run.

        Args:
            noise: the run's uniform noise multiplier at an ε (None: at its own).
            rounds: T.
        """
        return {}

    def parameters(self, model: Layout, vector: Tensor) -> Tensor:
        """Map a client's vector to the model's parameters `[..., size]`."""
        return vector

    def initial_state(self, model: Layout, server: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a client that has not taken part yet, from the initial model `[size]`."""
        state = {"own": server.clone()} if self.keeps_model else {}
        if self.local != "none":
            state["local"] = self._local_of(model, server)
        return state

    def initial_run_state(self, model: Layout, server: Tensor) -> dict[str, Tensor]:
        """Make the persistent tensors of a whole run, without a leading dimension."""
        return {}

    def begin(self, view: ClientView) -> Start:
        """Begin a round: compose the vectors that training starts from, and the context of the losses."""
        vector = self._composed(view.model, view.server, view.state)
        return Start(vector, vector, {}, self.static_mask(view.model, vector.device))

    def end(self, model: Layout, vector: Tensor, start: Start) -> dict[str, Tensor]:
        """End a round: make the persistent tensors from the trained vectors `[rows, vector size]`."""
        state = {"own": vector[:, : model.size].clone()} if self.keeps_model else {}
        if self.local != "none":
            state["local"] = self._local_of(model, vector)
        return state

    def tested(self, model: Layout, server: Tensor, state: Tensors) -> Tensor:
        """Compose the vectors `[rows, vector size]` that are tested on the clients."""
        return state["own"] if self.keeps_model else self._composed(model, server, state)

    def static_mask(self, model: Layout, device: torch.device) -> Tensor | None:
        """Make the mask of the coordinates that any client exchanges `[size]`; None for all of them."""
        if self.local == "none":
            return None
        mask = torch.ones(model.size, device=device)
        for span in model.spans(self.local):
            mask[span.slice] = 0
        return mask

    def after_release(
        self, model: Layout, state: Tensors, released: Tensor, knobs: Tensors, uploads: bool
    ) -> dict[str, Tensor]:
        """Update the tensors of runs or of clients from noised updates.

        Args:
            model: the network.
            state: tensors before.
            released: noised sums (rows are runs), or noised uploads (rows are clients), `[rows, size]`.
            knobs: values of the knobs `[rows]`.
            uploads: True where the rows are clients.

        Returns:
            The tensors that change, by name.
        """
        return {}

    def _composed(self, model: Layout, server: Tensor, state: Tensors) -> Tensor:
        """Put the client's part in its place in the server's model `[rows, size]`."""
        if self.local == "none":
            return server
        pieces, position, taken = [], 0, 0
        for span in model.spans(self.local):
            size = span.stop - span.start
            pieces += [server[:, position : span.start], state["local"][:, taken : taken + size]]
            position, taken = span.stop, taken + size
        return torch.cat([*pieces, server[:, position:]], dim=-1)

    def _local_of(self, model: Layout, vector: Tensor) -> Tensor:
        """Take the client's part out of vectors `[..., size]`."""
        return torch.cat([vector[..., span.slice] for span in model.spans(self.local)], dim=-1)
