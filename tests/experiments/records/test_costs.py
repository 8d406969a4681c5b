"""The cost of training and search in ε, against dp-accounting and against the runs' own ledgers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from envs import Setting, make_core
from experiments.contenders.bench import Bench
from experiments.contenders.preparing import make_players
from experiments.contenders.prior import prior_rounds, spread_evenly
from experiments.records.comparison import Comparison
from experiments.records.costs import PriorRounds, composed_epsilon, composition_words
from experiments.statistics.summary import summarise
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from tests.experiments.contenders.test_trainings import save
from tests.experiments.records.test_comparison import make_comparison, make_controller

SMALL: dict[str, Any] = {"task": "digits", "clients": 10, "rounds": 3, "local_steps": 1, "executor": "vectorized"}


def theirs(*parts: tuple[float, float, int]) -> float:
    """ε of (σ, q, rounds) by dp-accounting's privacy loss distributions."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for sigma, rate, rounds in parts:
        event: dp_event.DpEvent = dp_event.GaussianDpEvent(sigma)
        accountant.compose(event if rate == 1 else dp_event.PoissonSampledDpEvent(rate, event), rounds)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize(
    "parts", [[(4.0, 1.0, 120)], [(4.0, 0.2, 120)], [(4.0, 1.0, 60), (9.0, 1.0, 60)], [(2.0, 0.2, 40), (4.0, 1.0, 10)]]
)
def test_the_epsilon_of_all_rounds_is_dp_accountings(parts: list[tuple[float, float, int]]) -> None:
    releases = [PriorRounds(rounds, 10, 8.0, sigma, rate) for sigma, rate, rounds in parts]
    assert composed_epsilon(releases, 1e-5) == pytest.approx(theirs(*parts), rel=0.01)
    full = all(rate == 1 for _, rate, _ in parts)
    assert ("Gaussian" in composition_words(releases)) is full


def test_rounds_without_noise_cost_everything_and_rounds_without_release_nothing() -> None:
    noisy, bare, silent = (PriorRounds(40, 40, 8.0, sigma, 1.0) for sigma in (4.0, 0.0, math.inf))
    assert composed_epsilon([], 1e-5) == composed_epsilon([silent], 1e-5) == 0
    assert composed_epsilon([noisy, bare], 1e-5) == math.inf
    assert composed_epsilon([noisy, silent], 1e-5) == composed_epsilon([noisy], 1e-5)


def test_it_is_zero_without_training_and_nothing_where_the_noise_is_unknown() -> None:
    releases = (PriorRounds(120, 40, 8.0, 4.0, 1.0),)
    plain = make_controller("fixed:1", [0.5])
    known = make_controller("best-fixed", [0.5], search_rounds=120, releases=releases)
    unknown = make_controller("tuned:decay", [0.5], search_rounds=120)
    found = [row.search_epsilon for row in summarise(make_comparison(plain, known, unknown))]
    assert found == [0.0, composed_epsilon(releases, 1e-5), None]


@pytest.mark.parametrize(
    ("field", "value"),
    [("rounds", 0), ("run_rounds", 0), ("epsilon", 0.0), ("noise_multiplier", -1.0), ("sampling_rate", 0.0)],
)
def test_releases_that_cannot_be_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        PriorRounds(**{**vars(PriorRounds(1, 1, 1.0, 1.0, 1.0)), field: value})
    with pytest.raises(InputError, match="releases of 7 rounds, but 8 rounds made it"):
        make_controller("x", [0.5], search_rounds=8, releases=(PriorRounds(7, 1, 1.0, 1.0, 1.0),))


def test_they_are_written_and_read_back() -> None:
    releases = (PriorRounds(6, 3, 8.0, 4.0, 1.0), PriorRounds(2, 2, math.inf, 0.0, 0.5))
    comparison = make_comparison(make_controller("x", [0.5], search_rounds=8, releases=releases))
    assert Comparison.from_json(comparison.to_json()) == comparison


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epsilon": 2.0},
        {"sampling": "poisson", "sampling_rate": 0.5},
        {"sampling": "poisson", "sampling_rate": 0.5, "placement": "local"},
        {"sampling": "fixed", "sampling_rate": 0.5},
        {"guarantee": "as-published"},
    ],
)
def test_what_a_run_releases_is_what_its_budget_is_charged_for(changes: dict[str, Any]) -> None:
    [found] = prior_rounds(make_core(1, **{**SMALL, **changes}), {7: 2, 8: 4})
    core = make_core(1, **{**SMALL, **changes, "reward": "final-accuracy"})
    core.reset([0], [RunSettings(seed=0)])
    while not core.finished.all():
        core.step(np.zeros((1, 1)))
    charges = core.federation.charging.budgets[0].charges
    assert (found.rounds, found.run_rounds, found.runs) == (6, 3, 2)
    assert found.epsilon == core.federation.config.epsilon
    assert len(charges) == 3
    for charge in charges:
        assert charge.noise_multiplier == pytest.approx(found.noise_multiplier)
        assert charge.sampling_rate == found.sampling_rate


def test_methods_without_noise_and_without_exchange() -> None:
    [bare] = prior_rounds(
        make_core(1, **SMALL, method="fedavg", epsilon=math.inf, knobs="server_learning_rate"), {0: 3}
    )
    assert (bare.epsilon, bare.noise_multiplier) == (math.inf, 0.0)
    [alone] = prior_rounds(make_core(1, **SMALL, method="local-only", knobs="none"), {0: 3})
    assert composed_epsilon([alone], 1e-5) == 0
    assert prior_rounds(make_core(1, **SMALL), {}) == ()


def test_instances_with_budgets_of_their_own_count_with_their_own_noise() -> None:
    settings = {**SMALL, "generator": "epsilon=3..12"}
    found = prior_rounds(make_core(1, **settings), {1_000_000: 9, 1_000_001: 6, 1_000_002: 3})
    assert sum(one.rounds for one in found) == 18
    for seed, rounds in ((1_000_000, 9), (1_000_001, 6), (1_000_002, 3)):
        core = make_core(1, **{**settings, "reward": "final-accuracy"})
        core.reset([0], [RunSettings(seed=seed)])
        budget = core.federation.charging.budgets[0]
        [own] = [one for one in found if one.epsilon == budget.epsilon]
        assert (own.rounds, own.noise_multiplier) == (rounds, pytest.approx(budget.uniform_noise_multiplier))
    assert composed_epsilon(found, 1e-5) == pytest.approx(
        theirs(*((one.noise_multiplier, 1.0, one.rounds) for one in found)), rel=0.01
    )


def test_a_training_counts_at_the_noise_that_it_was_trained_with(tmp_path: Path) -> None:
    for seed in (0, 1):
        save(tmp_path / f"ppo-{seed}", seed, epsilon=2.0)
    with pytest.warns(UserWarning, match="trained with epsilon"):
        [contender] = make_players(
            [f"ppo:{tmp_path}/ppo-*"], Bench(Setting.of(**SMALL, epsilon=8.0, instances="test"), 1)
        )
    [found] = contender.releases
    assert (found.rounds, found.epsilon) == (contender.training_rounds, 2.0)


def test_rounds_are_spread_over_instances_without_losing_any() -> None:
    assert spread_evenly(7, [4, 5, 6]) == {4: 3, 5: 2, 6: 2}
    assert spread_evenly(0, [4]) == {4: 0}


def test_every_searched_controller_knows_what_its_search_released() -> None:
    specs = ["fixed:0.5", "best-fixed", "tuned:fixed"]
    contenders = make_players(specs, Bench(Setting.of(**SMALL, epsilon=2.0, instances="test"), 1))
    for contender in contenders:
        assert all(one.run_rounds == 3 for one in contender.releases)
        assert sum(one.rounds for one in contender.releases) == contender.search_rounds
        assert all(one.epsilon == 2.0 for one in contender.releases)
    assert [bool(contender.releases) for contender in contenders] == [False, True, True]
