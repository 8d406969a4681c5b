"""A client of a federation whose server is elsewhere: its local training, and what it uploads and keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fl_core.base.arrays import BoolArray
from fl_core.base.errors import require
from fl_core.run.cohort import Cohort
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.release import Cohorts
from fl_core.run.round import Round
from fl_core.run.round_parts import Charged
from fl_core.run.simulation import Simulation
from fl_core.run.state import RunState


@dataclass(frozen=True)
class Upload:
    """What a client sends after a round.

    Attributes:
        update: clipped `[size]`; NaN throughout if its training diverged.
        telemetry: its terms of the sums that the round has paid for, each of norm at most 1, by name.
        kept: what it keeps for its next round and sends to nobody, by name.
        loss: exact mean of its training loss, which no ε covers.
    """

    update: Tensor
    telemetry: dict[str, Tensor]
    kept: dict[str, Tensor]
    loss: float


class FederatedClient(Simulation):
    """One client of one run, by its number among all clients, with its data.

    Attributes:
        number: of the client.
    """

    def __init__(self, config: FederationConfig, seed: int, number: int):
        """Load the data of a client.

        Args:
            config: settings of the federation; its dataset holds the data of all clients, of whom only this one's are
                read.
            seed: of the run.
            number: of the client, from 0.

        Raises:
            InputError: the dataset is missing, or there is no such client.
        """
        require(0 <= number < config.clients, f"client is {number}, but it must be in 0 to {config.clients - 1}.")
        super().__init__(config, 1)
        run = RunSettings(seed=seed)
        self._hold([0], [run], [self._client_index(run)])
        self.number = number

    @override
    def draw_cohort(self, rounds: NDArray[np.int64], ran: BoolArray, out: BoolArray | None = None) -> Cohort:
        return Cohort.of([np.array([self.number])], self.device)

    def train(
        self,
        index: int,
        sent: Mapping[str, Tensor],
        knobs: Mapping[str, Tensor],
        kept: Mapping[str, Tensor],
        telemetry: Iterable[str] = (),
    ) -> Upload:
        """Train for a round.

        Args:
            index: of the round, from 0.
            sent: what the server broadcast, by name.
            knobs: values of every knob `[1]` (`[1, layers]`).
            kept: what the client has kept since its last round; empty before its first.
            telemetry: what the round has paid for.

        Raises:
            InputError: what was sent or kept is of another model or method.
        """
        state = self._state(index, sent, kept)
        turn = Round(self, state, knobs, Charged(np.array([True]), {}, None))
        local = turn.train()
        cohorts = self._cohorts(local.update, state, knobs)
        clipped, upload = self.releaser.clip(cohorts)
        told = turn.contributions(telemetry, local.update, local, clipped, None)
        turn.keep(local)
        update = upload[0, 0] if bool(local.finite[0]) else local.update[0]
        place = (torch.zeros(1, dtype=torch.int64), torch.tensor([self.number]))
        mine = {name: state.clients.get(name, *place)[0] for name in state.clients.names}
        return Upload(update, {name: value[0] for name, value in told.items()}, mine, float(local.loss[0]))

    def _state(self, index: int, sent: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> RunState:
        """Make the state that the round starts from, as far as a client knows it."""
        state = RunState.allocate(self.recipe, self.model, 1, self.config)
        state.restart(0, self.recipe, self.model, self.model.initial(self.seeds[0], self.device))
        state.rounds[0] = index
        for name, own in [("server", state.server), *((f"run.{name}", value) for name, value in state.runs.items())]:
            fits = name in sent and sent[name].shape == own[0].shape
            require(fits, f"The server's message lacks '{name}' of shape {tuple(own[0].shape)}: it has another model.")
            own[0] = sent[name]
        state.average[0] = state.server[0]
        state.clients.seat([np.array([self.number])])
        place = (torch.zeros(1, dtype=torch.int64), torch.tensor([self.number]))
        for name in state.clients.names if kept else ():
            own = state.clients.get(name, *place)
            fits = name in kept and kept[name].shape == own[0].shape
            require(fits, f"What this client keeps lacks '{name}' of shape {tuple(own[0].shape)}: start it anew.")
            state.clients.put(name, *place, kept[name].unsqueeze(0).to(own.dtype))
        return state

    def _cohorts(self, update: Tensor, state: RunState, knobs: Mapping[str, Tensor]) -> Cohorts:
        """Describe the client as a cohort of its own, for the clip."""
        weights = self.recipe.mechanism.clipping.run_weights(state.runs, dict(knobs))
        return Cohorts(
            updates=update.unsqueeze(0),
            present=torch.ones(1, 1, dtype=torch.bool),
            participants=torch.ones(1),
            sizes=np.ones(1, dtype=np.int64),
            weights=None,
            uploaded=None,
            clip=knobs["clip_norm"],
            layer_sizes=self.layer_sizes,
            layer_weights=None if weights is None else weights.unsqueeze(1),
            noise_multiplier=torch.zeros(1),
            clip_ratio=None,
            noise_ratio=None,
        )
