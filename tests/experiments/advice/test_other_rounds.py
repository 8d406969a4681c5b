"""Rounds that searches took near a setting go before the rule, where they gained for certain."""

from __future__ import annotations

import pytest

from experiments.advice.advice import advise
from experiments.advice.evidence import Evidence, near
from experiments.advice.other_rounds import RIVAL, rounds_found
from experiments.contenders.specs import TUNED_ROUNDS
from fl_core.run.config import FederationConfig
from tests.experiments.advice.test_evidence import HERE, line, page


def pages(gain: float, rounds: int = 80, clients: int = 50) -> list[Evidence]:
    rows = []
    for seed in range(8):
        rows.append(line(RIVAL, seed, 0.5 + 0.01 * seed, clients=clients, label="fixed 0.8"))
        wave = 0.001 * (seed % 3)
        label = f"fixed 0.4 for {rounds} rounds"
        rows.append(line(TUNED_ROUNDS, seed, 0.5 + 0.01 * seed + gain + wave, clients=clients, label=label))
    return page(*rows, clients=clients)


def test_the_nearest_page_with_a_search_over_rounds_tells() -> None:
    found = rounds_found(near(HERE, [*pages(0.05, 160, clients=70), *pages(0.03)]).found)
    assert found is not None
    assert (found.rounds, found.own) == (80, 40)
    assert found.gain.mean == pytest.approx(0.03 + 0.001 * (0 + 1 + 2 + 0 + 1 + 2 + 0 + 1) / 8)
    assert found.as_json()["interval"] == list(found.gain.interval)


@pytest.mark.parametrize("evidence", [[], pages(-0.03), pages(-0.001), page(line(RIVAL, 0, 0.5, label="fixed 0.8"))])
def test_without_a_certain_gain_the_rule_stands(evidence: list[Evidence]) -> None:
    assert rounds_found(evidence) is None


def test_what_a_search_found_near_a_task_is_what_is_advised_there() -> None:
    advice = advise(FederationConfig(dataset="digits", clients=50, epsilon=7.5, rounds=40))
    assert advice.found is None  # the committed page has no certain gain of other rounds
    assert advice.best_rounds.kept >= max(one.kept for one in advice.rounds) - 0.02
