"""Neighbours as they are: N and N + 1 clients through the federation's own draws, clips and sums."""

from __future__ import annotations

import math

import pytest
from dp_accounting.pld import privacy_loss_distribution

from fl_core.audit.staging import StagedFederation
from fl_core.base.errors import InputError
from fl_core.privacy.accounting import gdp_epsilon
from fl_core.privacy.ledger import Ledger
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan

CLIENTS, ROUNDS = 55, 12
INF = float("inf")


def config(**values: object) -> FederationConfig:
    settings = {"clients": CLIENTS, "rounds": ROUNDS, "epsilon": INF, "partition": "iid", **values}
    return FederationConfig(**settings)  # type: ignore[arg-type]


def sums(clients: int, against: bool = True, silent: bool = False, **values: object) -> list[float]:
    """First coordinate of each round's sum without noise, C being 1: all clients pull up, the last one down."""
    federation = StagedFederation(config(clients=clients, test_fraction=0.2, **values), [0])
    pull = federation.server.new_zeros(federation.model.size)
    pull[0] = 100.0
    last = 0.0 if silent else -1.0 if against else 1.0
    federation.moves = lambda run, client: (  # type: ignore[method-assign]
        pull * (1 - (1 - last) * (client == CLIENTS).unsqueeze(-1))
    )
    found = []
    for _ in range(ROUNDS):
        federation.play(RoundPlan.constant(1, 1.0))
        found.append(float(federation.last_release[0, 0]))
    return found


def test_one_client_more_moves_the_sum_of_a_fixed_cohort_by_twice_the_clip_norm() -> None:
    fixed: dict[str, object] = {"sampling": "fixed", "sampling_rate": 0.9}
    assert config(clients=55, **fixed).cohort == config(clients=56, **fixed).cohort == 50
    one, more = sums(55, **fixed), sums(56, **fixed)
    moved = [abs(a - b) for a, b in zip(one, more, strict=True)]
    assert max(moved) == pytest.approx(2, abs=1e-4)
    assert sum(move > 1.9 for move in moved) > ROUNDS / 2
    silent, pulling = sums(56, silent=True, **fixed), sums(56, **fixed)
    assert max(abs(a - b) for a, b in zip(silent, pulling, strict=True)) == pytest.approx(1, abs=1e-4)  # zero-out


def test_one_client_more_moves_the_sum_of_a_poisson_cohort_by_the_clip_norm() -> None:
    poisson: dict[str, object] = {"sampling": "poisson", "sampling_rate": 0.9}
    one, more = sums(55, **poisson), sums(56, **poisson)
    assert max(abs(a - b) for a, b in zip(one, more, strict=True)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("clients", "rate", "rounds"), [(50, 0.98, 40), (50, 0.5, 40), (55, 0.9, 40), (50, 0.9, 1)])
def test_fixed_cohorts_are_claimed_for_what_they_hide(clients: int, rate: float, rounds: int) -> None:
    """The exact loss of N against N + 1 clients: with probability m/(N + 1), the sum of m moves by 2C."""
    made = config(clients=clients, sampling="fixed", sampling_rate=rate, epsilon=7.5, rounds=rounds)
    ledger = Ledger(7.5, 1e-5, made.accounting_rate, rounds, adjacency="zero-out")
    replaced = Ledger(7.5, 1e-5, made.accounting_rate, rounds, adjacency="replace-one")
    in_cohort = made.cohort / (clients + 1)

    def least(sigma: float) -> float:
        pair = privacy_loss_distribution.from_gaussian_mechanism(
            sigma / 2,
            sampling_prob=in_cohort,
            value_discretization_interval=1e-3,
            pessimistic_estimate=False,
            use_connect_dots=False,
        )
        return float(pair.self_compose(rounds).get_epsilon_for_delta(1e-5))

    assert least(ledger.uniform_noise_multiplier) > 8.1  # so zero-out must not be called add-remove
    assert 3.0 < least(replaced.uniform_noise_multiplier) <= 7.5


def test_adjacency_follows_the_cohorts_and_reaches_the_ledger() -> None:
    assert config().neighbours == "add-remove"
    assert config(sampling="fixed", sampling_rate=0.5).neighbours == "zero-out"
    assert config(placement="local").neighbours == "zero-out"
    assert config(sampling="fixed", adjacency="add-remove").neighbours == "add-remove"  # all clients, every round
    replaced = config(adjacency="replace-one", sampling_rate=0.5)
    assert (replaced.neighbours, replaced.accounting_rate) == ("replace-one", 1.0)
    federation = StagedFederation(config(epsilon=4.0, adjacency="replace-one"), [0])
    ledger = federation.ledgers[0]
    assert ledger.adjacency == "replace-one"
    federation.play(RoundPlan.constant(1, 1.0))
    mu = 2 / ledger.charges[0].noise_multiplier
    assert ledger.epsilon_by("gdp") == pytest.approx(gdp_epsilon(mu, ledger.delta), rel=1e-9)
    assert gdp_epsilon(mu * math.sqrt(ROUNDS), ledger.delta) == pytest.approx(4.0, rel=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adjacency": "add-remove", "sampling": "fixed", "sampling_rate": 0.5}, "takes another's place"),
        ({"adjacency": "add-remove", "placement": "local"}, "the server sees who takes part"),
        ({"adjacency": "swap"}, "adjacency 'swap' is unknown"),
        ({"noise_schedule": "fixed", "guarantee": "as-published"}, "noise_schedule is fixed, but"),
        ({"noise_schedule": "fixed", "epsilon": 4.0, "client_epsilon": "2,4"}, "noise_schedule is fixed, but"),
    ],
)
def test_claims_that_cohorts_or_controllers_cannot_keep_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        config(**values)
