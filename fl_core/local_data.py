"""The clients' index tables of a batch of runs, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.config import FederationConfig
from fl_core.data.clients import ClientIndex, minibatch_positions
from fl_core.recipes.objective import Phase
from fl_core.streams import torch_generator


class ClientTables:
    """Index tables of every run, stacked.

    Attributes:
        train, test: image indices, padded with valid ones `[runs, clients, longest]`.
        train_count, test_count: how many of them are the client's `[runs, clients]`.
    """

    def __init__(self, indices: Sequence[ClientIndex], device: torch.device):
        self.train = _stack([index.train for index in indices]).to(device)
        self.test = _stack([index.test for index in indices]).to(device)
        self.train_count = torch.stack([index.train_count for index in indices]).to(device)
        self.test_count = torch.stack([index.test_count for index in indices]).to(device)
        self.most_samples = max(int(index.train_count.max()) for index in indices)


def _stack(tables: list[Tensor]) -> Tensor:
    """Tables `[clients, longest]` of several runs, the shorter ones padded by repeating their first column."""
    longest = max(table.shape[1] for table in tables)
    padded = [torch.cat([table, table[:, :1].expand(-1, longest - table.shape[1])], dim=1) for table in tables]
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
    drawn = []
    for row, (seed, index) in enumerate(zip(seeds, rounds, strict=True)):
        generator = torch_generator(seed, stream, int(index), tables.train.device)
        positions = minibatch_positions(tables.train_count[row], steps, batch_size, generator)
        drawn.append(tables.train[row].gather(1, positions.flatten(1)).view(positions.shape))
    return torch.stack(drawn)


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
