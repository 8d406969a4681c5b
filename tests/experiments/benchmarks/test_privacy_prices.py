"""The tables of privacy prices, against the oracle and the closed curve."""

from __future__ import annotations

import json

import pytest

from experiments.benchmarks.privacy_prices import ORACLE, PUBLISHED, adaptivity_price, ours, round_cost


def test_every_accountant_answers_or_refuses_the_oracle_cases() -> None:
    cases = json.loads(ORACLE.read_text())["cases"]
    for name in ("g2_T100", "s3_cohort10pct"):
        for accountant, key in PUBLISHED.items():
            value, expected = ours(cases[name], accountant), cases[name]["epsilon"].get(key)
            assert (value is None) == (expected is None)
            assert value is None or value == pytest.approx(expected, rel=0.025)


def test_the_filter_costs_nothing_at_rate_1_and_little_below() -> None:
    full, full_by_pld = adaptivity_price(4.0, 1.0, 100)
    assert full == pytest.approx(full_by_pld, rel=5e-6)
    assert full == pytest.approx(10.8116, abs=1e-4)
    sampled, sampled_by_pld = adaptivity_price(8.0, 0.1, 100)
    assert 1 < sampled / sampled_by_pld < 1.11


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_the_cost_of_a_round_of_a_long_ledger_is_told_by_part(rate: float) -> None:
    assert all(cost > 0 for cost in round_cost(rate).values())  # how long it takes is the benchmark's to say
