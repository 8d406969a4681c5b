"""What stays on the client between rounds, and which model a round, and a test, starts from.

Every function takes tensors of one client (`[size]`) or of stacked clients (`[..., size]`) and returns new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.models import Model
from fl_core.recipes.objective import Phase

State = Mapping[str, Tensor]
"""A client's persistent tensors; empty for methods that keep nothing."""


@dataclass(frozen=True)
class Personalization:
    """A part of the model that never leaves the client, and an optional adaptation of a throw-away copy for tests.

    Attributes:
        local: `none`, `head`, `body` or `all`: the part that each client keeps to itself (`all`: nothing is shared).
        adaptation: phases run on a copy of the model before it is tested on the client; never kept, never uploaded.
    """

    local: str = "none"
    adaptation: tuple[Phase, ...] = ()

    @property
    def is_stateful(self) -> bool:
        """Whether clients keep tensors between rounds."""
        return self.local != "none"

    @property
    def shares_whole_model(self) -> bool:
        """Whether the server's model is complete, so that its own accuracy means something."""
        return self.local == "none"

    def shared(self, model: Model) -> Tensor:
        """Mask `[size]`, 1 on the coordinates that are exchanged with the server."""
        mask = torch.ones(model.size)
        mask[model.span(self.local).slice] = 0
        return mask

    def initial_state(self, model: Model, broadcast: Tensor) -> dict[str, Tensor]:
        """The persistent tensors of a client that has not taken part yet, from the initial model `[..., size]`."""
        if not self.is_stateful:
            return {}
        return {"local": broadcast[..., model.span(self.local).slice].clone()}

    def compose(self, model: Model, broadcast: Tensor, state: State) -> Tensor:
        """The client's own model `[..., size]`: the server's with the client's part in its place."""
        if not self.is_stateful:
            return broadcast
        span = model.span(self.local)
        pieces = (broadcast[..., : span.start], state["local"], broadcast[..., span.stop :])
        return torch.cat([piece.expand(*state["local"].shape[:-1], -1) for piece in pieces], dim=-1)

    def next_state(self, model: Model, trained: Tensor) -> dict[str, Tensor]:
        """The persistent tensors after local training ended at `[..., size]`."""
        return {"local": trained[..., model.span(self.local).slice].clone()} if self.is_stateful else {}
