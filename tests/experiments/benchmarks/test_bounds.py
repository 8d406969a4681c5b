"""Rounds whose bounds are measured: the operations that are counted, and a measurement of each kind."""

import dataclasses

import pytest

from experiments.benchmarks.bounds import BOUNDED, Bounded, bounded_cost, operations
from experiments.benchmarks.peers import step_operations


def test_operations_of_a_step_are_those_of_its_products() -> None:
    inputs, hidden, classes, batch = 64, 32, 10, 16
    forward = inputs * hidden + hidden * classes
    backward = forward + hidden * classes  # gradients by all weights, and by the second layer's inputs
    assert step_operations("mlp", (1, 8, 8), batch) == 2 * batch * (forward + backward)


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.title)
def test_operations_grow_with_rows_and_gradients(case: Bounded) -> None:
    plain = dataclasses.replace(case, rows=1, method="dp-fedavg")
    assert operations(case) == operations(plain) * case.rows * (2 if case.method == "fedaddp" else 1)


def test_rounds_of_rows_are_measured() -> None:
    cost = bounded_cost(Bounded("two rows", rows=2), rounds=1)
    assert 0 < cost.products < cost.seconds * 5
    assert cost.peak_share > 0
