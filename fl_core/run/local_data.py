"""The clients' index tables of a batch of runs, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.base.counters import mixed, stream_words
from fl_core.base.streams import torch_generator
from fl_core.data.clients import ClientIndex, minibatch_keys, positions_from_keys
from fl_core.recipes.objective import Phase
from fl_core.run.config import FederationConfig


class ClientTables:
    """Index tables of every run, stacked.

    Attributes:
        train, test: image indices, padded with valid ones `[runs, clients, longest]`.
        train_count, test_count: how many of them are the client's `[runs, clients]`.
        widths: longest client of each run; the run's random draws depend on it, and on no other run.
    """

    def __init__(self, indices: Sequence[ClientIndex], device: torch.device):
        self.train = _stack([index.train for index in indices]).to(device)
        self.test = _stack([index.test for index in indices]).to(device)
        self.train_count = torch.stack([index.train_count for index in indices]).to(device)
        self.test_count = torch.stack([index.test_count for index in indices]).to(device)
        self.widths = [index.train.shape[1] for index in indices]


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
    lengths: NDArray[np.int64],
    batch_size: int,
) -> tuple[Tensor, ...]:
    """Training images of every client's minibatches, per phase `[runs, clients, steps, batch]`.

    They are drawn for all clients, so that a client's batches do not depend on who else takes part; and each run draws
    for its own steps, so that they do not depend on the batch it is in. A run with fewer steps repeats its last one.

    Args:
        tables: the clients' index tables.
        seeds: of the runs.
        stream: the named stream that is drawn from.
        rounds: of the runs, `[runs]`.
        lengths: steps of each phase `[runs, phases]`.
        batch_size: samples per step.
    """
    clients, device = tables.train.shape[1], tables.train.device
    steps = lengths.sum(axis=1)
    keys = [
        minibatch_keys(clients, width, int(own), batch_size, torch_generator(seed, stream, int(index), device))
        for seed, index, width, own in zip(seeds, rounds, tables.widths, steps, strict=True)
    ]
    positions = positions_from_keys(_stack(keys), tables.train_count, int(steps.max()), batch_size)
    batches = tables.train.gather(2, positions.flatten(2)).view(positions.shape)
    if (lengths == lengths[0]).all():
        return torch.split(batches, lengths[0].tolist(), dim=2)
    return _split_unequal(batches, lengths)


def sample_words(
    seeds: Sequence[int], stream: str, rounds: NDArray[np.int64], run: Tensor, client: Tensor, batches: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Derive a random word for each sample of each minibatch, per phase `[rows, steps, batch]`.

    A word depends on seed, round, client, phase and place, and so neither on who else takes part nor on the batch that
    the run is in.

    Args:
        seeds: of the runs.
        stream: the stream that the minibatches are drawn from; each has words of its own.
        rounds: of the runs, `[runs]`.
        run, client: of the rows.
        batches: per phase, what the words are for `[..., steps, batch]`.
    """
    of_runs = [stream_words(seed, "augmentation", stream, int(done)) for seed, done in zip(seeds, rounds, strict=True)]
    words = mixed(torch.tensor(of_runs, device=run.device)[run], client)
    found = []
    for phase, one in enumerate(batches):
        places = torch.arange(one.shape[-2] * one.shape[-1], device=run.device).view(one.shape[-2:])
        found.append(mixed(mixed(words, phase)[:, None, None], places))
    return tuple(found)


def _split_unequal(batches: Tensor, lengths: NDArray[np.int64]) -> tuple[Tensor, ...]:
    """`torch.split` of `[runs, clients, steps, batch]` where each run has phases of its own length."""
    starts, pieces = lengths.cumsum(axis=1) - lengths, []
    for start, length in zip(starts.T, lengths.T, strict=True):
        steps = start[:, None] + np.minimum(np.arange(length.max()), length[:, None] - 1)
        index = torch.from_numpy(steps).to(batches.device)[:, None, :, None]
        pieces.append(batches.gather(2, index.expand(-1, batches.shape[1], -1, batches.shape[3])))
    return tuple(pieces)


def phase_steps(
    config: FederationConfig, phases: tuple[Phase, ...], tables: ClientTables
) -> tuple[NDArray[np.int64], list[Tensor | None]]:
    """Steps of each phase `[runs, phases]`, and which clients still work at each `[runs, clients, steps]` (None: all).

    With `local_epochs`, a client works for as many minibatches as its passes need; others wait for the longest.
    """
    if not config.local_epochs:
        steps = [max(1, round(config.local_steps * phase.work)) for phase in phases]
        return np.tile(np.array(steps, dtype=np.int64), (len(tables.widths), 1)), [None] * len(phases)
    passes = [config.local_epochs * phase.work for phase in phases]
    lengths = [[max(1, math.ceil(own * width / config.batch_size)) for own in passes] for width in tables.widths]
    active: list[Tensor | None] = []
    for phase, own in enumerate(passes):
        steps_of = torch.ceil(own * tables.train_count.to(torch.float64) / config.batch_size).clamp_min(1)
        longest = max(row[phase] for row in lengths)
        active.append(torch.arange(longest, device=steps_of.device) < steps_of.unsqueeze(-1))
    return np.array(lengths, dtype=np.int64), active
