"""Persistent tensors of clients, which take memory once a client has taken part."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fl_core.base.arrays import IndexArray
from fl_core.base.errors import InputError, require
from fl_core.base.transfers import to_device

_START, _KEPT, _SEEN = "start", "kept", "took_part"


class ClientStore:
    """What the clients of a batch of runs keep, by name; whoever never took part has what all start with.

    Each run's start has a row of its own, and each client that took part another; `seats` points to them.

    Attributes:
        clients: number of clients of a run.
        device: where tensors are given and taken.
    """

    def __init__(
        self, like: Mapping[str, Tensor], runs: int, clients: int, device: torch.device, memory_limit: int = 0
    ):
        """Make room for nobody yet; `restart` gives each run its start.

        Args:
            like: tensors of a client, by name, of the shapes that are kept.
            runs: runs of the batch.
            clients: number of clients of a run.
            device: of the tensors.
            memory_limit: bytes past which they are kept in a temporary file in place of memory; 0 keeps all in memory.
        """
        self.clients, self.device = clients, device
        self._runs, self._limit = runs, memory_limit
        self._values = {name: value.new_zeros(runs, *value.shape, device=device) for name, value in like.items()}
        self._seats = np.repeat(np.arange(runs)[:, None], clients, axis=1)
        self._seats_there = to_device(self._seats.copy(), device)
        self._free = np.zeros(0, dtype=np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what is kept."""
        return tuple(self._values)

    def restart(self, run: int, start: Mapping[str, Tensor]) -> None:
        """Let all clients of a run start anew with these tensors, by name."""
        taken = self._seats[run][self._seats[run] >= self._runs]
        self._free = np.concatenate([self._free, taken])
        self._seats[run] = run
        self._seats_there[run] = run
        for name, value in start.items():
            self._values[name][run] = value.to(self._values[name].device)

    def seat(self, members: Sequence[IndexArray]) -> None:
        """Make room for these clients of each run, before they first `put` what they keep."""
        if not self._values:
            return
        runs = np.repeat(np.arange(self._runs), [len(chosen) for chosen in members])
        clients = np.concatenate(members).astype(np.int64)
        new = self._seats[runs, clients] < self._runs
        runs, clients = runs[new], clients[new]
        if not len(runs):
            return
        self._reserve(len(runs))
        seats, self._free = self._free[: len(runs)], self._free[len(runs) :]
        self._seats[runs, clients] = seats
        where = tuple(to_device(axis, self.device) for axis in (runs, clients))
        self._seats_there[where] = to_device(seats, self.device)
        for value in self._values.values():
            there = to_device(seats, value.device)
            value[there] = value[to_device(runs, value.device)]

    def rows(self, run: Tensor, client: Tensor) -> Mapping[str, Tensor]:
        """Look up what the clients at (run, client) `[rows]` keep, by name `[rows, ...]`; gathered when it is read."""
        return _Rows(self, self._values, run, client)

    def get(self, name: str, run: Tensor, client: Tensor) -> Tensor:
        """Gather what the clients at (run, client) `[rows]` keep under a name `[rows, ...]`."""
        stored = self._values[name]
        return to_device(stored.index_select(0, self._seats_there[run, client].to(stored.device)), self.device)

    def put(self, name: str, run: Tensor, client: Tensor, values: Tensor) -> None:
        """Keep values `[rows, ...]` for the clients at (run, client), who have a seat."""
        stored = self._values[name]
        stored[self._seats_there[run, client].to(stored.device)] = values.to(stored.device)

    def everybody(self, name: str) -> Tensor:
        """Gather what all clients keep `[runs, clients, ...]`."""
        stored = self._values[name]
        return to_device(stored[self._seats_there.to(stored.device)], self.device)

    # ---------------------------------------------------------------- room

    def _reserve(self, seats: int) -> None:
        """Have so many seats free, by growing to twice the size at least."""
        missing = seats - len(self._free)
        if missing <= 0:
            return
        old = len(next(iter(self._values.values())))
        new = min(max(old + missing, 2 * old), self._runs * (1 + self.clients))
        size = sum(value[0].numel() * value.element_size() for value in self._values.values())
        in_memory = not self._limit or new * size <= self._limit
        for name, value in self._values.items():
            grown = value.new_empty(new, *value.shape[1:]) if in_memory else _mapped(value, new)
            grown[:old] = value
            self._values[name] = grown
        self._free = np.concatenate([self._free, np.arange(old, new)])

    # ---------------------------------------------------------------- saving

    def tensors(self) -> dict[str, Tensor]:
        """Copy everything under the names that it is saved under: starts, who took part, and what they keep."""
        if not self._values:
            return {}
        seen = np.argwhere(self._seats >= self._runs)
        seats = torch.from_numpy(self._seats[tuple(seen.T)])
        found = {_SEEN: torch.from_numpy(seen)}
        for name, value in self._values.items():
            found[f"{_START}.{name}"] = value[: self._runs].clone()
            found[f"{_KEPT}.{name}"] = value[seats.to(value.device)]
        return found

    def with_tensors(self, saved: Mapping[str, Tensor]) -> ClientStore:
        """Make a store of the same kind from saved tensors.

        Raises:
            InputError: a tensor has another shape or type, or names a client that does not exist.
            KeyError: a tensor is missing.
        """
        like = {name: value[0] for name, value in self._values.items()}
        made = ClientStore(like, self._runs, self.clients, self.device, self._limit)
        if not like:
            return made
        seen = saved[_SEEN]
        _require_seen(seen, self._runs, self.clients)
        for name, value in like.items():
            for part, count in ((f"{_START}.{name}", self._runs), (f"{_KEPT}.{name}", len(seen))):
                fits = saved[part].shape == (count, *value.shape) and saved[part].dtype == value.dtype
                require(
                    fits,
                    f"clients.{part} of the saved run has shape {tuple(saved[part].shape)}, not "
                    f"{(count, *value.shape)}.",
                )
        for run in range(self._runs):
            made.restart(run, {name: saved[f"{_START}.{name}"][run] for name in like})
        run, client = seen.numpy().T
        made.seat([client[run == one] for one in range(self._runs)])
        where = tuple(axis.to(self.device) for axis in seen.T)
        for name in like:
            made.put(name, where[0], where[1], saved[f"{_KEPT}.{name}"].to(self.device))
        return made


class _Rows(Mapping[str, Tensor]):
    """What some clients keep, by name."""

    def __init__(self, store: ClientStore, names: Collection[str], run: Tensor, client: Tensor):
        self._store, self._names, self._place = store, names, (run, client)

    def __getitem__(self, name: str) -> Tensor:
        return self._store.get(name, *self._place)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _require_seen(seen: Tensor, runs: int, clients: int) -> None:
    """Refuse a list of clients that took part `[seen, 2]` which is not one."""
    fits = seen.dim() == 2 and seen.shape[1] == 2 and seen.dtype == torch.int64
    inside = fits and bool(((seen >= 0) & (seen < torch.tensor([runs, clients]))).all())
    unique = inside and len(torch.unique(seen, dim=0)) == len(seen)
    require(unique, f"clients.{_SEEN} of the saved run is not a list of clients of {runs} runs with {clients} each.")


def _mapped(like: Tensor, rows: int) -> Tensor:
    """Make room for rows in a temporary file that the system drops with the process."""
    shape = (rows, *like.shape[1:])
    try:
        with tempfile.TemporaryFile(prefix="dpilot-clients-") as file:
            # Reserved now, because a write that finds the disk full ends the process.
            os.posix_fallocate(file.fileno(), 0, max(1, math.prod(shape) * like.element_size()))
            mapped = np.memmap(file, dtype=np.dtype(str(like.dtype).removeprefix("torch.")), mode="r+", shape=shape)
    except OSError as error:
        raise InputError(
            f"client_memory_mib is exceeded, and '{tempfile.gettempdir()}' cannot hold what the clients keep: {error}."
        ) from error
    return torch.from_numpy(mapped)
