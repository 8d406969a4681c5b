"""The rule: its constants are those of its runs, more signal never makes the verdict worse, and it can be inverted."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.advice.calibrate import Cell, Searched, fit, widened
from experiments.advice.evidence import read_pages
from experiments.advice.rule import LONGEST_CLIP, MARGINAL, USABLE, VERDICTS, evidence_of_rule, fitted
from experiments.advice.signal import Signal, Updates, noise_multiplier_of
from fl_core import FederationConfig
from fl_core.data.partition import concentration

CLIENTS = st.integers(2, 20_000)
EPSILONS = st.floats(0.05, 50.0)
ROUNDS = st.integers(1, 500)


def test_the_constants_are_those_of_the_runs_in_the_file() -> None:
    about = evidence_of_rule()
    rule, error = fit([Cell(*one) for one in about["cells"]])
    rule = widened(rule, [Searched(*one) for one in about["searched"]])
    assert asdict(rule) == pytest.approx(about["constants"], rel=2e-3)
    assert error == pytest.approx(about["error"], rel=2e-3)
    assert about["command"] == "python -m experiments.advice.calibrate"


def test_the_rule_tells_what_its_runs_kept() -> None:
    cells = [Cell(*one) for one in evidence_of_rule()["cells"]]
    agreement = fitted().agreement_of(concentration("shards(3)", 10))
    for share, verdict in ((0.85, "usable"), (0.25, "not usable")):
        told = {
            fitted().verdict(agreement * one.strength, one.rounds)
            for one in cells
            if one.context == "rounds 40" and abs(one.kept - share) < 0.05 and one.multiple <= LONGEST_CLIP
        }
        assert told == {verdict}


@pytest.mark.parametrize("page", evidence_of_rule()["searched"], ids=lambda page: str(page[0]))
def test_what_other_datasets_kept_and_the_clip_norms_they_wanted_are_met(page: list[Any]) -> None:
    rule, one = fitted(), Searched(*page)
    signal = rule.felt(Signal(1.0, 1.0, 1, one.noised, agreement=rule.agreement_of(one.concentration)))
    signal *= one.strength * math.sqrt(one.noised)
    assert rule.kept(signal, one.rounds) == pytest.approx(one.kept, abs=0.1)
    updates = next(Updates.of(other.config) for other in read_pages() if other.page == one.page)
    found = one.gradients * one.gradient / (updates.gradient * updates.step * one.rounds)  # in calibrated lengths
    assert 0.6 < rule.multiple(signal, one.rounds, rule.pace(updates)) / found < 1.6


def test_clients_that_hold_fewer_classes_agree_less() -> None:
    cells = [Cell(*one) for one in evidence_of_rule()["cells"]]
    measured = {
        context: np.median([one.agreement for one in cells if one.context == context and one.epsilon == 8.0])
        for context in ("rounds 40", "rounds 40, partition iid")
    }
    for context, partition in (("rounds 40", "shards(3)"), ("rounds 40, partition iid", "iid")):
        law = fitted().agreement_of(concentration(partition, 10))
        assert law == pytest.approx(measured[context], rel=0.15)


def signal_at(clients: int, epsilon: float, rounds: int) -> float:
    config = FederationConfig(clients=clients, epsilon=epsilon, rounds=rounds, delta=1e-6)
    return Signal(noise_multiplier_of(config), clients, rounds, 2410, agreement=0.3).of_run


@given(CLIENTS, CLIENTS, EPSILONS, EPSILONS, ROUNDS)
def test_more_clients_and_more_epsilon_never_make_the_verdict_worse(
    n: int, m: int, epsilon: float, other: float, rounds: int
) -> None:
    low = signal_at(min(n, m), min(epsilon, other), rounds)
    for more in (
        signal_at(max(n, m), min(epsilon, other), rounds),
        signal_at(min(n, m), max(epsilon, other), rounds),
    ):
        assert VERDICTS.index(fitted().verdict(more, rounds)) >= VERDICTS.index(fitted().verdict(low, rounds))
        assert fitted().kept(more, rounds) >= fitted().kept(low, rounds) * (1 - 1e-9)


@given(st.floats(0.01, 0.99), ROUNDS)
def test_the_signal_that_is_needed_keeps_what_was_asked_for(kept: float, rounds: int) -> None:
    assert fitted().kept(fitted().needed(kept, rounds), rounds) == pytest.approx(kept)


def test_the_verdict_changes_at_its_thresholds() -> None:
    for share, names in ((MARGINAL, VERDICTS[:2]), (USABLE, VERDICTS[1:])):
        needed = fitted().needed(share, 40)
        assert (fitted().verdict(needed * 0.999, 40), fitted().verdict(needed * 1.001, 40)) == names


@given(st.floats(0.03, 3.0), ROUNDS, st.floats(0.05, 5.0))
def test_the_clip_norm_travels_equally_far_in_any_number_of_rounds(strength: float, rounds: int, step: float) -> None:
    multiple = fitted().multiple(strength, rounds, step)
    assert multiple <= LONGEST_CLIP
    if multiple < LONGEST_CLIP:
        assert multiple * rounds * step == pytest.approx(fitted().best_travel(strength))
        assert fitted().expected(strength, rounds, step) == pytest.approx(fitted().kept(strength, rounds))
    else:
        assert fitted().expected(strength, rounds, step) <= fitted().kept(strength, rounds)


@given(st.floats(0.03, 3.0), st.floats(1.0, 4.0), ROUNDS, st.floats(0.05, 5.0))
def test_more_signal_never_keeps_less_of_a_short_run(signal: float, factor: float, rounds: int, step: float) -> None:
    kept = [fitted().expected(one, rounds, step) for one in (signal, factor * signal)]
    assert kept[1] >= kept[0] * (1 - 1e-3)


def test_any_other_travel_keeps_less() -> None:
    best = fitted().best_travel(0.5)
    kept = [fitted().kept_at(0.5, 40, best * math.exp(off)) for off in (-2, -1, 0, 1, 2)]
    assert kept == [*sorted(kept[:3]), *sorted(kept[3:], reverse=True)]
