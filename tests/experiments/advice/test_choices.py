"""Rounds, sampling rates, clients and budgets that are looked at, against the formulas that they come from."""

from __future__ import annotations

import math
from typing import Any

import pytest

from experiments.advice.choices import (
    Choice,
    clients_for,
    epsilon_for,
    over_rates,
    over_rounds,
    recommended,
)
from experiments.advice.rule import SPARED, fitted
from experiments.advice.signal import Signal, Updates, changed, signal_of
from fl_core import FederationConfig

UPDATES = Updates(norm=1.3, step=1.1, gradient=1.2, noised=2410.0, size=2410, classes=10)


def config_of(**changes: Any) -> FederationConfig:
    return FederationConfig(**{"epsilon": 7.5, **changes})


def test_at_full_cohorts_all_rounds_have_the_same_signal_and_share_one_travel() -> None:
    choices = over_rounds(config_of(rounds=30), UPDATES, fitted())
    assert [one.rounds for one in choices] == [10, 20, 30, 40, 80, 160]
    for one in choices:
        assert one.signal.strength == pytest.approx(choices[0].signal.strength, rel=1e-6)
        assert one.signal.noise_multiplier / math.sqrt(one.rounds) == pytest.approx(
            choices[0].signal.noise_multiplier / math.sqrt(10), rel=1e-6
        )
        assert one.work == 50 * one.rounds
    long = [one for one in choices if one.multiple < 1]
    assert len({round(one.multiple * one.rounds, 9) for one in long}) == 1


def test_what_is_advised_is_the_least_work_that_keeps_nearly_the_most() -> None:
    def choice(kept: float, work: float) -> Choice:
        return Choice(1, 1.0, Signal(1.0, 1.0, 1, 1.0), kept, 1.0, work)

    short, middle, long = choice(0.5, 1), choice(0.8 - 0.9 * SPARED, 2), choice(0.8, 4)
    assert recommended([long, middle, short]) is middle
    assert recommended([choice(0.8 - 1.1 * SPARED, 1), long]) is long


def test_sampling_rates_are_looked_at_where_not_all_take_part() -> None:
    assert over_rates(config_of(), UPDATES, fitted()) == []
    choices = over_rates(config_of(clients=100, sampling_rate=0.4, rounds=5), UPDATES, fitted())
    assert [one.sampling_rate for one in choices] == [0.2, 0.4, 0.8, 1.0]
    strengths = [one.signal.strength for one in choices]
    assert strengths == sorted(strengths)
    assert choices[-1].signal.noise_multiplier == pytest.approx(
        over_rounds(config_of(clients=100, rounds=5), UPDATES, fitted())[0].signal.noise_multiplier
    )


def test_rounds_that_the_budget_cannot_pay_are_left_out_and_its_own_are_refused() -> None:
    asked = config_of(epsilon=0.02, delta=1e-5, rounds=10)
    assert [one.rounds for one in over_rounds(asked, UPDATES, fitted())] == [10, 20, 40, 80, 160]


@pytest.mark.parametrize("changes", [{}, {"placement": "local"}, {"sampling_rate": 0.5, "rounds": 6}])
def test_so_many_clients_and_so_much_epsilon_give_the_signal_that_was_asked_for(changes: dict[str, Any]) -> None:
    config = config_of(epsilon=2.0, **changes)
    signal = signal_of(config, UPDATES.noised, 0.3)
    wanted = 1.7 * signal.of_run
    clients = clients_for(config, signal, 1.7)
    assert signal_of(changed(config, clients=clients), UPDATES.noised, 0.3).of_run >= wanted * (1 - 1e-9)
    assert signal_of(changed(config, clients=clients - 1), UPDATES.noised, 0.3).of_run < wanted
    epsilon = epsilon_for(config, 1.7)
    assert signal_of(changed(config, epsilon=epsilon), UPDATES.noised, 0.3).of_run == pytest.approx(wanted, rel=1e-3)


def test_an_epsilon_that_no_ledger_holds_is_infinite() -> None:
    config = config_of(clients=2, epsilon=1.0, delta=1e-3)
    assert epsilon_for(config, 1e6) == math.inf
