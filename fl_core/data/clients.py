"""Per-client train and test indices as padded tables, and the order in which a client's minibatches draw from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_core.base.arrays import BoolArray
from fl_core.base.errors import require
from fl_core.base.streams import numpy_generator
from fl_core.data.partition import partition

_SPLIT_DRAW = 1
"""The draw of the stream `partition` that splits train from test; draw 0 is the partition itself."""
_KEY_BITS = 40


@dataclass(frozen=True, eq=False)
class ClientIndex:
    """Train and test indices of every client into the dataset's training images, as padded tables.

    A row is padded by repeating the client's own indices from the start, so every entry is valid.
    """

    train: Tensor
    """int64 [clients, longest train]."""
    train_count: Tensor
    """int64 [clients], at least 1: how many entries of the row are not padding."""
    test: Tensor
    """int64 [clients, longest test]; disjoint from `train`."""
    test_count: Tensor
    """int64 [clients], at least 1."""

    def to(self, device: torch.device | str) -> ClientIndex:
        """Copy the tables to a device."""
        return ClientIndex(*(table.to(device) for table in vars(self).values()))


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
    parts = partition(labels, clients, spec, seed, None if groups is None else _array(groups))
    sample = np.concatenate(parts)
    owner = np.repeat(np.arange(clients), [len(part) for part in parts])
    is_test = _choose_test(owner, labels[sample], test_fraction, numpy_generator(seed, "partition", _SPLIT_DRAW))
    train, train_count = _padded(sample[~is_test], owner[~is_test], clients)
    test, test_count = _padded(sample[is_test], owner[is_test], clients)
    return ClientIndex(train, train_count, test, test_count)


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


def _padded(sample: np.ndarray, owner: np.ndarray, clients: int) -> tuple[Tensor, Tensor]:
    """Pad each owner's samples (owners ascending) to a table `[clients, longest]`; also count them `[clients]`."""
    count = np.bincount(owner, minlength=clients)
    start = np.cumsum(count) - count
    column = np.arange(count.max())
    table = sample[start[:, None] + column % count[:, None]]
    return torch.from_numpy(table), torch.from_numpy(count)


def minibatch_positions(counts: Tensor, steps: int, batch: int, generator: torch.Generator) -> Tensor:
    """Draw every client's minibatches of one round, as positions among its own training samples.

    A client walks through random permutations of its samples, one after the other: none is used again before all
    are used, and a minibatch may straddle two passes.

    Args:
        counts: int64 [clients], at least 1, of *all* clients of one run, in or out of the cohort, on the generator's
            device: then a client's batches do not depend on who else takes part.
        steps: local steps.
        batch: samples per step.
        generator: a generator for this round, of the stream `minibatch`.

    Returns:
        int64 [clients, steps, batch], each row in 0..count-1. Time and memory are those of sorting
        [clients, longest + steps*batch] integers.
    """
    keys = minibatch_keys(len(counts), int(counts.max()), steps, batch, generator)
    return positions_from_keys(keys, counts, steps, batch)


def minibatch_keys(clients: int, longest: int, steps: int, batch: int, generator: torch.Generator) -> Tensor:
    """Draw the random part of `minibatch_positions`: int64 `[clients, longest - 1 + steps*batch]`.

    Apart from it because `int(counts.max())` waits for a GPU, while `longest` is known from a table's shape.
    """
    width = longest - 1 + steps * batch
    return torch.randint(2**_KEY_BITS, (clients, width), generator=generator, device=generator.device)


def positions_from_keys(keys: Tensor, counts: Tensor, steps: int, batch: int) -> Tensor:
    """Turn random keys into minibatch positions: passes side by side, each sorted by its keys.

    Args:
        keys: int64 [..., clients, width] from `minibatch_keys`; keys of several runs may be stacked, padded with
            anything on the right, and each run gets what it gets alone.
        counts: int64 [..., clients].
        steps: local steps.
        batch: samples per step.

    Returns:
        int64 [..., clients, steps, batch].
    """
    counts = counts.unsqueeze(-1)
    column = torch.arange(keys.shape[-1], device=keys.device)
    # The pass in the high bits keeps passes together; within one, the keys shuffle. Whole passes precede the cut.
    order = torch.argsort((column // counts << _KEY_BITS) | keys, dim=-1)[..., : steps * batch]
    return (order % counts).reshape(*keys.shape[:-1], steps, batch)
