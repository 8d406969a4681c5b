"""The draw of the classes that clients hold, against the loop over clients that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from fl_core.data.class_holders import draw_holders, spread_holders


def one_after_the_other(holders: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    table, left = np.zeros((clients, len(holders)), dtype=np.bool_), holders.copy()
    for client in range(clients):
        keys = np.where(left > 0, rng.random(len(left)) ** (1 / np.maximum(left, 1)), -1.0)
        keys[left == clients - client] = 2.0
        chosen = np.argsort(keys)[-each:]
        table[client, chosen] = True
        left[chosen] -= 1
    return table


@pytest.mark.parametrize(("clients", "classes", "each"), [(1, 3, 2), (63, 10, 9), (700, 10, 2), (2000, 62, 3)])
@pytest.mark.parametrize("scarce", [False, True])
def test_clients_that_choose_together_hold_what_they_would_one_after_the_other(
    clients: int, classes: int, each: int, scarce: bool
) -> None:
    random = np.random.default_rng(clients)
    capacity = np.full(classes, clients)
    if scarce:  # a few classes that everybody has to take, and many that run out
        capacity = np.minimum(clients, random.integers(1, 2 * clients * each // classes + 2, classes))
        capacity[:each] = clients
    holders = spread_holders(capacity, clients * each, random)
    state = random.bit_generator.state
    expected = one_after_the_other(holders, clients, each, random)
    after = random.bit_generator.state
    random.bit_generator.state = state
    found = draw_holders(holders, clients, each, random)
    assert np.array_equal(found, expected)
    assert np.array_equal(found.sum(axis=0), holders)
    assert random.bit_generator.state == after
