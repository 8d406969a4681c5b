"""Tests of cohorts keep their level over many seeds of coins, and see what is no independent coin."""

import numpy as np
import pytest

from fl_core.audit.cohorts import measure_cohorts


def coins(seed: int, rate: float, clients: int, rounds: int = 256) -> np.ndarray:
    """Draw independent cohorts `[4, rounds, clients]`."""
    return np.random.default_rng(seed).random((4, rounds, clients)) < rate


@pytest.mark.parametrize(("rate", "clients"), [(0.02, 100), (0.2, 30), (0.9, 8)])
def test_independent_coins_raise_no_alarm(rate, clients):
    alarms = sum(bool(measure_cohorts(coins(seed, rate, clients), rate, rate * clients).findings) for seed in range(40))
    assert alarms <= 1


def test_a_rate_is_seen_from_a_fifth_more_on():
    found = measure_cohorts(coins(0, 0.24, 30), 0.2, 6)
    assert [one.topic for one in found.findings] == ["rate"]
    assert found.findings[0].leak


def test_clients_drawn_too_rarely_are_no_leak():
    found = measure_cohorts(coins(0, 0.15, 30), 0.2, 6)
    assert not any(one.leak for one in found.findings)
    assert found.findings


def test_books_that_count_no_amplification_are_held_to_the_size_alone():
    fixed = np.zeros((4, 64, 20), dtype=bool)
    fixed[:, :, :5] = True
    assert not measure_cohorts(fixed, 1.0, 5).findings
    assert [one.topic for one in measure_cohorts(fixed, 1.0, 6).findings] == ["size"]
