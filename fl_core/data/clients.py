"""Train and test samples of every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_core.base.arrays import BoolArray, IndexArray
from fl_core.base.errors import require
from fl_core.base.streams import numpy_generator
from fl_core.base.transfers import largest_count
from fl_core.data.partition import partition_owners

_SPLIT_DRAW = 1
"""The draw of the stream `partition` that splits train from test; draw 0 is the partition itself."""


@dataclass(frozen=True, eq=False)
class Lists:
    """One list of samples for each client, one after the other in a single tensor: memory follows the samples.

    Attributes:
        flat: int64 [entries] of all lists, client by client.
        start: int64 [..., clients], where each client's list begins.
        count: int64 [..., clients], at least 1, its length.
        longest: the largest count.
        bounded: True to take `longest` for the largest of any counts, as where those could not be read without waiting.
    """

    flat: Tensor
    start: Tensor
    count: Tensor
    longest: int
    bounded: bool = False

    @classmethod
    def by_owner(cls, sample: IndexArray, owner: IndexArray, clients: int) -> Lists:
        """Collect samples `[n]` by their owners `[n]`, which must ascend and leave out nobody."""
        count = np.bincount(owner, minlength=clients)
        start = np.cumsum(count) - count
        return cls(torch.from_numpy(sample), torch.from_numpy(start), torch.from_numpy(count), int(count.max()))

    @classmethod
    def stacked(cls, lists: Sequence[Lists]) -> Lists:
        """Stack the lists of several runs `[runs, clients]`."""
        offsets = np.cumsum([0, *(len(one.flat) for one in lists[:-1])])
        return cls(
            torch.cat([one.flat for one in lists]),
            torch.stack([one.start + int(offset) for one, offset in zip(lists, offsets, strict=True)]),
            torch.stack([one.count for one in lists]),
            max(one.longest for one in lists),
        )

    def of(self, *place: int) -> Tensor:
        """Return the list of one client, or of a client of a run."""
        start = int(self.start[place])
        return self.flat[start : start + int(self.count[place])]

    def at(self, run: Tensor, client: Tensor, positions: Tensor) -> Tensor:
        """Look up entries `[rows, ...]` by their positions in the lists of the clients at (run, client) `[rows]`."""
        start = self.start[run, client]
        return self.flat[start.view(-1, *[1] * (positions.dim() - 1)) + positions]

    def padded(self, run: Tensor, client: Tensor) -> tuple[Tensor, Tensor]:
        """Lay out the lists of the clients at (run, client), repeated to one length `[rows, longest]`, and count them.

        On a CPU the length is that of the longest among them; elsewhere of the longest of all, known without waiting.
        """
        count = self.count[run, client]
        longest = self.bound(count)
        columns = torch.arange(longest, device=count.device) % count.unsqueeze(-1)
        return self.at(run, client, columns), count

    def bound(self, count: Tensor) -> int:
        """Bound some of the counts, by their own largest where that can be read without waiting for a GPU."""
        return self.longest if self.bounded else largest_count(count, self.longest) or self.longest

    def to(self, device: torch.device | str) -> Lists:
        """Copy the lists to a device."""
        return Lists(self.flat.to(device), self.start.to(device), self.count.to(device), self.longest, self.bounded)


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """Train and test samples of every client, as indices into the dataset's training images.

    Attributes:
        train: lists of training samples.
        test: lists of test samples, disjoint from those.
    """

    train: Lists
    test: Lists

    def to(self, device: torch.device | str) -> ClientIndex:
        """Copy the lists to a device."""
        return ClientIndex(self.train.to(device), self.test.to(device))


def client_index(
    labels: np.ndarray | Tensor,
    clients: int,
    spec: str,
    seed: int,
    groups: np.ndarray | Tensor | None = None,
    test_fraction: float = 0.2,
) -> ClientIndex:
    """Partition the training samples over clients and split each client's own into train and test.

    Both parts follow the client's own distribution: every class gives its share of the test part, rounded up or down;
    a class with a single sample stays in train, unless the client has nothing else.

    Args:
        labels: integer [n], of all training samples.
        clients: number of clients.
        spec: the partition, see `partition`.
        seed: the run's seed.
        groups: integer [n], natural clients.
        test_fraction: share of each client's samples in its test part, in (0, 0.5]; at least 1 sample.

    Raises:
        InputError: see `partition`; or `test_fraction` is out of range.
    """
    require(0 < test_fraction <= 0.5, f"test_fraction is {test_fraction}, but it must be a number in (0, 0.5].")
    labels = _array(labels)
    sample, owner = partition_owners(labels, clients, spec, seed, None if groups is None else _array(groups))
    is_test = _choose_test(owner, labels[sample], test_fraction, numpy_generator(seed, "partition", _SPLIT_DRAW))
    train = Lists.by_owner(sample[~is_test], owner[~is_test], clients)
    return ClientIndex(train, Lists.by_owner(sample[is_test], owner[is_test], clients))


def _array(values: np.ndarray | Tensor) -> np.ndarray:
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)


def _choose_test(owner: np.ndarray, labels: np.ndarray, fraction: float, rng: np.random.Generator) -> BoolArray:
    """Choose the test samples of every client by systematic sampling: bool `[n]`.

    A client's samples are laid along a line, class by class and shuffled within each; every sample takes up a stretch,
    and a ruler with unit marks at a random offset picks those with a mark on them. Stretches are such that a client
    has as many marks as test samples, a class its share of them, and no class of two or more is picked whole.

    Args:
        owner: int [n], the client of each sample, ascending, each with at least 2 samples.
        labels: int [n].
        fraction: share of test samples, in (0, 0.5].
        rng: draws the order within classes and the offsets.
    """
    order = np.lexsort((rng.random(len(owner)), labels, owner))
    client, label = owner[order], labels[order]
    starts = np.r_[True, (client[1:] != client[:-1]) | (label[1:] != label[:-1])]
    group = np.cumsum(starts) - 1
    size = np.bincount(group)[group]

    # The first of each class gives its place on the line to the others and so is always a training sample.
    weight = np.where(starts, 0.0, size / np.maximum(size - 1, 1))
    samples, repeated = np.bincount(client), np.bincount(client[size > 1], minlength=client[-1] + 1)
    weight[repeated[client] == 0] = 1.0

    total = np.where(repeated == 0, samples, repeated)
    wanted = np.clip(np.rint(fraction * samples), 1, np.maximum(total // 2, 1))
    end = np.cumsum(weight * (wanted / total)[client])
    before = np.r_[0.0, np.cumsum(wanted)[:-1]]
    # Offsets keep clear of 0 and 1, where rounding errors could move a mark to the neighbouring class or client.
    position = end - before[client] + rng.uniform(0.001, 0.999, len(wanted))[client]
    marks = np.floor(position)
    first = np.r_[True, client[1:] != client[:-1]]
    picked = marks > np.where(first, 0.0, np.r_[0.0, marks[:-1]])
    chosen = np.zeros(len(owner), dtype=np.bool_)
    chosen[order] = picked
    return chosen
