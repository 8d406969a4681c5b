"""The clients' index tables of a batch of runs, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.config import FederationConfig
from fl_core.data.clients import ClientIndex, minibatch_keys, positions_from_keys
from fl_core.recipes.objective import Phase
from fl_core.streams import torch_generator


class ClientTables:
    """Index tables of every run, stacked.

    Attributes:
        train, test: image indices, padded with valid ones `[runs, clients, longest]`.
        train_count, test_count: how many of them are the client's `[runs, clients]`.
        widths: longest client of each run, which its random draws depend on.
        most_samples: longest of all.
    """

    def __init__(self, indices: Sequence[ClientIndex], device: torch.device):
        self.train = _stack([index.train for index in indices]).to(device)
        self.test = _stack([index.test for index in indices]).to(device)
        self.train_count = torch.stack([index.train_count for index in indices]).to(device)
        self.test_count = torch.stack([index.test_count for index in indices]).to(device)
        self.widths = [index.train.shape[1] for index in indices]
        self.most_samples = max(self.widths)


def _stack(tables: list[Tensor]) -> Tensor:
    """Tables `[clients, columns]` of several runs, the narrower ones padded by repeating their first column."""
    columns = max(table.shape[1] for table in tables)
    padded = [torch.cat([table, table[:, :1].expand(-1, columns - table.shape[1])], dim=1) for table in tables]
    return torch.stack(padded)


def draw_batches(
    tables: ClientTables,
    seeds: Sequence[int],
    stream: str,
    rounds: NDArray[np.int64],
    steps: int,
    batch_size: int,
) -> Tensor:
    """Training images of every client's minibatches `[runs, clients, steps, batch]`.

    They are drawn for all clients, so that a client's batches do not depend on who else takes part.
    """
    clients, device = tables.train.shape[1], tables.train.device
    keys = [
        minibatch_keys(clients, width, steps, batch_size, torch_generator(seed, stream, int(index), device))
        for seed, index, width in zip(seeds, rounds, tables.widths, strict=True)
    ]
    positions = positions_from_keys(_stack(keys), tables.train_count, steps, batch_size)
    return tables.train.gather(2, positions.flatten(2)).view(positions.shape)


def phase_steps(
    config: FederationConfig, phases: tuple[Phase, ...], tables: ClientTables
) -> tuple[list[int], list[Tensor | None]]:
    """Steps of each phase, and which clients still work at each `[runs, clients, steps]` (None: all do).

    With `local_epochs`, a client works for as many minibatches as its passes need; others wait for the longest.
    """
    if not config.local_epochs:
        return [max(1, round(config.local_steps * phase.work)) for phase in phases], [None] * len(phases)
    lengths: list[int] = []
    active: list[Tensor | None] = []
    for phase in phases:
        passes = config.local_epochs * phase.work
        lengths.append(max(1, math.ceil(passes * tables.most_samples / config.batch_size)))
        own = torch.ceil(passes * tables.train_count / config.batch_size).clamp_min(1)
        active.append(torch.arange(lengths[-1], device=own.device) < own.unsqueeze(-1))
    return lengths, active
