"""State of a batch of runs between two rounds, and how it is saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.base.errors import require
from fl_core.models.model import Model
from fl_core.recipes.recipe import Recipe
from fl_core.run.client_store import ClientStore
from fl_core.run.config import FederationConfig

_CLIENTS = "clients."


@dataclass(frozen=True)
class RunState:
    """Everything that a round starts from, beside settings, data and budgets.

    Attributes:
        rounds: rounds done by each run `[runs]`; counted up in place when a round ends, also by an error.
        server: server models `[runs, size]`.
        average: their running averages, which tests use `[runs, size]`.
        last_release: sums that were released last `[runs, size]`.
        runs: persistent tensors that the method's parts keep for each run `[runs, ...]`, by name.
        clients: those that they keep for each client. They are large, so a round writes into them: the state that a
            round was given must not be used again.
    """

    rounds: NDArray[np.int64]
    server: Tensor
    average: Tensor
    last_release: Tensor
    runs: dict[str, Tensor]
    clients: ClientStore

    @classmethod
    def allocate(cls, recipe: Recipe, model: Model, runs: int, config: FederationConfig) -> RunState:
        """Make a state of zeros, to be filled run by run with `restart`."""
        device = config.resolve_device()
        server = torch.zeros(runs, model.size, device=device)
        of_run, of_client = recipe.initial_state(model, server[0])
        return cls(
            rounds=np.zeros(runs, dtype=np.int64),
            server=server,
            average=torch.zeros_like(server),
            last_release=torch.zeros_like(server),
            runs={name: value.new_zeros(runs, *value.shape) for name, value in of_run.items()},
            clients=ClientStore(of_client, runs, config.clients, device, config.client_memory_mib * 2**20),
        )

    def restart(self, row: int, recipe: Recipe, model: Model, initial: Tensor) -> None:
        """Put one run at its beginning, in place, with the initial model `[size]`."""
        self.rounds[row] = 0
        self.server[row] = self.average[row] = initial
        self.last_release[row] = 0
        of_run, of_client = recipe.initial_state(model, initial)
        for name, value in of_run.items():
            self.runs[name][row] = value
        self.clients.restart(row, of_client)

    def tensors(self) -> dict[str, Tensor]:
        """Copy all tensors, by the names that they are saved under."""
        named = {name: value.detach().clone() for name, value in self._of_runs().items()}
        return named | {f"{_CLIENTS}{name}": value for name, value in self.clients.tensors().items()}

    def _of_runs(self) -> dict[str, Tensor]:
        """Name the tensors that are not of clients."""
        named = {"server": self.server, "average": self.average, "last_release": self.last_release}
        return named | {f"run.{name}": value for name, value in self.runs.items()}

    def with_tensors(self, saved: Mapping[str, Tensor], rounds: NDArray[np.int64]) -> RunState:
        """Make a state of the same shape from copies of saved tensors.

        Raises:
            InputError: a tensor has another shape or type.
            KeyError: a tensor is missing.
        """
        found = {}
        for name, own in self._of_runs().items():
            fits = saved[name].shape == own.shape and saved[name].dtype == own.dtype
            require(fits, f"{name} of the saved run has shape {tuple(saved[name].shape)}, not {tuple(own.shape)}.")
            found[name] = saved[name].to(own.device).clone()
        return RunState(
            rounds=rounds,
            server=found["server"],
            average=found["average"],
            last_release=found["last_release"],
            runs={name: found[f"run.{name}"] for name in self.runs},
            clients=self.clients.with_tensors(
                {name.removeprefix(_CLIENTS): value for name, value in saved.items() if name.startswith(_CLIENTS)}
            ),
        )
