"""Which clients hold which classes, where each holds the same number of them."""

from __future__ import annotations

from fl_core.base.arrays import BoolArray
from fl_core.base.libraries import numpy as np

_TOGETHER, _PARTS = 4096, 64
"""Clients that choose together: at most so many, and at most one of so many parts of those that are left."""


def spread_holders(capacity: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Count the clients that hold each class: as evenly as the capacities allow, `total` altogether."""
    level = 0
    while np.minimum(capacity, level + 1).sum() <= total and level < capacity.max():
        level += 1
    holders: np.ndarray = np.minimum(capacity, level)
    rising = rng.permutation(np.flatnonzero(capacity > level))[: total - int(holders.sum())]
    holders[rising] += 1
    return holders


def draw_holders(holders: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> BoolArray:
    """Draw a bool table [clients, classes] with `each` classes per row and `holders` clients per column.

    Clients choose in turn, classes weighted by the places they have left. A class with as many places as there are
    clients left must be taken; there are never more than `each` of those, so the last client can always be served.
    """
    table = np.zeros((clients, len(holders)), dtype=np.bool_)
    left, client = holders.copy(), 0
    while client < clients:
        size = min(_TOGETHER, max(1, (clients - client) // _PARTS))
        turns = clients - np.arange(client, client + size)
        chosen = _choose_in_turn(left, turns, each, rng.random((size, len(left))))
        table[client : client + size] = chosen
        left -= chosen.sum(axis=0)
        client += size
    return table


def _choose_in_turn(left: np.ndarray, turns: np.ndarray, each: int, draws: np.ndarray) -> BoolArray:
    """Let clients choose `each` classes, one client after the other `[size, classes]`.

    All choose at once from the places that they would find if those before had chosen as last guessed, until the guess
    repeats itself: the first client's is right from the start, so in the end all are, and mostly after three or four.

    Args:
        left: places left in each class when the first chooses.
        turns: clients that are left when each chooses, itself among them `[size]`.
        each: classes per client.
        draws: uniform numbers `[size, classes]`.
    """
    chosen = np.zeros(draws.shape, dtype=np.bool_)
    while True:
        found = left - (np.cumsum(chosen, axis=0) - chosen)
        # Efraimidis and Spirakis 2006: the largest u^(1/w) are a weighted draw without replacement.
        keys = np.where(found > 0, draws ** (1 / np.maximum(found, 1)), -1.0)
        keys[found == turns[:, None]] = 2.0
        again = np.zeros_like(chosen)
        np.put_along_axis(again, np.argsort(keys, axis=1)[:, -each:], True, axis=1)
        if (again == chosen).all():
            return chosen
        chosen = again
