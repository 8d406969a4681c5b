"""Cohorts: the clients that take part in a round, drawn on the CPU from seed and settings, before any data is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.base.arrays import IndexArray
from fl_core.base.streams import numpy_generator
from fl_core.base.transfers import to_device
from fl_core.run.config import FederationConfig
from fl_core.run.plan import BoolArray


@dataclass(frozen=True)
class Cohort:
    """The clients of a round over all runs: row i is client `client[i]` of run `run[i]`, at `place[i]` of its cohort.

    Rows go run by run, and within a run by their places.

    Attributes:
        run, client, place: int64 `[rows]` on the device.
        sizes: clients per run `[runs]`, on the CPU.
        members: clients of each run, in order, on the CPU.
    """

    run: Tensor
    client: Tensor
    place: Tensor
    sizes: NDArray[np.int64]
    members: Sequence[IndexArray]

    @classmethod
    def of(cls, members: Sequence[IndexArray], device: torch.device) -> Cohort:
        """Make the cohort of these clients of each run, on a device."""
        sizes = np.array([len(chosen) for chosen in members], dtype=np.int64)
        rows = np.repeat(np.arange(len(members)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        run, client, place = (
            to_device(column.astype(np.int64), device) for column in (rows, np.concatenate(members), places)
        )
        return cls(run, client, place, sizes, members)

    @cached_property
    def on_host(self) -> tuple[Tensor, Tensor]:
        """`run` and `client` on the host."""
        run = np.repeat(np.arange(len(self.members)), self.sizes)
        return torch.from_numpy(run), torch.from_numpy(np.concatenate(self.members).astype(np.int64))

    @property
    def width(self) -> int:
        """The largest cohort of the batch, at least 1: tensors `[runs, width, ...]` hold every cohort."""
        return max(1, int(self.sizes.max(initial=0)))

    def scatter(self, rows: Tensor) -> Tensor:
        """Lay out values `[rows, ...]` by cohort `[runs, width, ...]`, zero beyond a cohort's last client.

        The result is a view of the values if all cohorts are equally large.
        """
        if (self.sizes == self.width).all():
            return rows.reshape(len(self.sizes), self.width, *rows.shape[1:])
        padded = rows.new_zeros(len(self.sizes), self.width, *rows.shape[1:])
        padded[self.run, self.place] = rows
        return padded

    def present(self) -> Tensor:
        """Return the mask `[runs, width]` (bool) of places that hold a client."""
        return self.scatter(torch.ones_like(self.run, dtype=torch.bool))


def of_runs(values: Tensor, run: Tensor) -> Tensor:
    """Gather values `[runs, ...]` by run index `[rows]`, to `[rows, ...]`; indexing would copy element by element."""
    return values.index_select(0, run)


def draw_cohort(
    config: FederationConfig,
    seeds: Sequence[int],
    rounds: NDArray[np.int64],
    ran: BoolArray,
    device: torch.device,
    out: BoolArray | None = None,
) -> Cohort:
    """Draw the cohort of every run; a function of seed, round and settings alone.

    `poisson` draws every client independently, so a cohort may be empty; `fixed` draws the same number every round.

    Args:
        config: number of clients, sampling and its rate.
        seeds: one per run.
        rounds: index of the round that each run is at `[runs]`.
        ran: runs that take part `[runs]`; the others get an empty cohort.
        device: of the cohort's tensors.
        out: clients whose own budget is spent `[runs, clients]`; they are left out after the draw.
    """
    members = [
        draw_members(config, seed, int(index)) if takes_part else np.zeros(0, dtype=np.int64)
        for seed, index, takes_part in zip(seeds, rounds, ran, strict=True)
    ]
    if out is not None:
        members = [drawn[~left[drawn]] for drawn, left in zip(members, out, strict=True)]
    return Cohort.of(members, device)


def draw_members(config: FederationConfig, seed: int, round_index: int) -> NDArray[np.int64]:
    """Draw the clients of one round of one run, in order; arguments as above."""
    if config.sampling_rate == 1:  # whatever would be drawn
        return np.arange(config.clients)
    random = numpy_generator(seed, "cohort", round_index)
    if config.sampling == "poisson":
        return np.flatnonzero(random.random(config.clients) < config.sampling_rate)
    return np.sort(random.choice(config.clients, int(config.cohort), replace=False, shuffle=False))


def draw_tested(config: FederationConfig, seeds: Sequence[int], device: torch.device) -> Tensor:
    """Draw the clients of each run that are tested, all if they are few `[runs, tested]`; the same all along."""
    clients, tested = config.clients, config.tested_clients
    if tested == clients:
        return torch.arange(clients, device=device).expand(len(seeds), -1)
    drawn = [
        np.sort(numpy_generator(seed, "evaluation").choice(clients, tested, replace=False, shuffle=False))
        for seed in seeds
    ]
    return to_device(np.stack(drawn), device)
