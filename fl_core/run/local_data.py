"""The samples of the clients of a batch of runs, and the minibatches drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.base.counters import mixed, stream_words
from fl_core.base.transfers import to_device
from fl_core.data.clients import ClientIndex, Lists
from fl_core.data.minibatches import minibatch_positions
from fl_core.recipes.objective import Phase
from fl_core.run.config import FederationConfig

Pair = tuple[Tensor, Tensor]
"""Run and client of each row."""


class ClientTables:
    """Samples of every client of every run, as lists of image indices.

    Attributes:
        device: where the lists are.
        train, test: the lists `[runs, clients]`.
        widths: training samples of the longest client of each run.
    """

    def __init__(self, indices: Sequence[ClientIndex], device: torch.device):
        self.device, self._indices = device, indices
        self.train = Lists.stacked([index.train for index in indices]).to(device)
        self.test = Lists.stacked([index.test for index in indices]).to(device)
        self.widths = [index.train.longest for index in indices]

    def picking(
        self, aside: bool, run: Tensor, client: Tensor, on_host: Pair | None
    ) -> tuple[ClientTables, Tensor, Tensor]:
        """Choose the side on which positions of images are picked: the tables there, and the rows there.

        Args:
            aside: True for images on the host.
            run, client: rows on the device.
            on_host: the same rows on the host; None reads them back, if that is the side.
        """
        return (self.on_host, *(on_host or (run.cpu(), client.cpu()))) if aside else (self, run, client)

    @cached_property
    def on_host(self) -> ClientTables:
        """The same on the host, with the bounds of the device, so that the same is picked."""
        if self.device.type == "cpu":
            return self
        tables = ClientTables(self._indices, torch.device("cpu"))
        tables.train, tables.test = replace(tables.train, bounded=True), replace(tables.test, bounded=True)
        return tables


def evenly_spaced(index: Tensor, counts: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Take so many of the first `counts` `[rows]` entries of `[rows, longest]`, evenly spaced; and count them."""
    taken = counts.clamp_max(samples)
    spaced = torch.arange(samples, device=counts.device) * counts.unsqueeze(-1) // taken.unsqueeze(-1)
    return index.gather(1, spaced.clamp_max(index.shape[1] - 1)), taken


def client_words(
    seeds: Sequence[int], stream: str, purpose: str, rounds: NDArray[np.int64], run: Tensor, client: Tensor
) -> Tensor:
    """Derive the word `[rows]` that all draws of a client in a round for one purpose depend on.

    Args:
        seeds: of the runs.
        stream: one of `fl_core.base.streams.STREAMS`.
        purpose: tells apart several uses of the stream in one round.
        rounds: rounds done by each run `[runs]`.
        run, client: of the rows.
    """
    of_runs = [stream_words(seed, stream, purpose, int(done)) for seed, done in zip(seeds, rounds, strict=True)]
    return mixed(to_device(torch.tensor(of_runs), run.device)[run], client)


def draw_batches(
    tables: ClientTables,
    seeds: Sequence[int],
    stream: str,
    rounds: NDArray[np.int64],
    lengths: NDArray[np.int64],
    batch_size: int,
    run: Tensor,
    client: Tensor,
) -> tuple[Tensor, ...]:
    """Draw the training images of clients' minibatches, per phase `[rows, steps, batch]`.

    A client's draws depend on seed, round and client, and so neither on who else takes part nor on the batch that the
    run is in. A run with fewer steps repeats its last one.

    Args:
        tables: the clients' samples.
        seeds: of the runs.
        stream: the named stream that is drawn from.
        rounds: of the runs, `[runs]`.
        lengths: steps of each phase `[runs, phases]`.
        batch_size: samples per step.
        run, client: of the rows.
    """
    words, counts = client_words(seeds, stream, "minibatches", rounds, run, client), tables.train.count[run, client]
    steps = int(lengths.sum(axis=1).max())
    positions = minibatch_positions(words, counts, steps, batch_size, tables.train.bound(counts))
    batches = tables.train.at(run, client, positions)
    if (lengths == lengths[0]).all():
        return torch.split(batches, lengths[0].tolist(), dim=1)
    return _split_unequal(batches, lengths, run)


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
    words = client_words(seeds, "augmentation", stream, rounds, run, client)
    found = []
    for phase, one in enumerate(batches):
        places = torch.arange(one.shape[-2] * one.shape[-1], device=run.device).view(one.shape[-2:])
        found.append(mixed(mixed(words, phase)[:, None, None], places))
    return tuple(found)


def _split_unequal(batches: Tensor, lengths: NDArray[np.int64], run: Tensor) -> tuple[Tensor, ...]:
    """Split `[rows, steps, batch]` into phases, where each run has phases of its own length."""
    starts, pieces = lengths.cumsum(axis=1) - lengths, []
    for start, length in zip(starts.T, lengths.T, strict=True):
        steps = start[:, None] + np.minimum(np.arange(length.max()), length[:, None] - 1)
        index = to_device(steps, batches.device)[run].unsqueeze(-1)
        pieces.append(batches.gather(1, index.expand(-1, -1, batches.shape[2])))
    return tuple(pieces)


def phase_steps(
    config: FederationConfig, phases: tuple[Phase, ...], widths: Sequence[int], counts: Tensor
) -> tuple[NDArray[np.int64], list[Tensor | None]]:
    """Count the steps of each phase, and mark which clients still work at each.

    With `local_epochs`, a client works for as many minibatches as its passes need; others wait for the longest.

    Args:
        config: work of a round.
        phases: of the local training.
        widths: training samples of the longest client of each run.
        counts: training samples of the clients that work `[rows]`.

    Returns:
        int64 `[runs, phases]`, and per phase True where a client works `[rows, steps]`, None if all work throughout.
    """
    if not config.local_epochs:
        steps = [max(1, round(config.local_steps * phase.work)) for phase in phases]
        return np.tile(np.array(steps, dtype=np.int64), (len(widths), 1)), [None] * len(phases)
    passes = [config.local_epochs * phase.work for phase in phases]
    lengths = [[max(1, math.ceil(own * width / config.batch_size)) for own in passes] for width in widths]
    active: list[Tensor | None] = []
    for phase, own in enumerate(passes):
        steps_of = torch.ceil(own * counts.to(torch.float64) / config.batch_size).clamp_min(1)
        longest = max(row[phase] for row in lengths)
        active.append(torch.arange(longest, device=counts.device) < steps_of.unsqueeze(-1))
    return np.array(lengths, dtype=np.int64), active
