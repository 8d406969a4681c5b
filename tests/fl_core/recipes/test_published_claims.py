"""The papers' own claims against Opacus, brute force over orders, and the multipliers that their tables go back to."""

import math
from dataclasses import replace

import numpy as np
import pytest
from opacus.accountants.analysis import rdp as opacus_rdp
from scipy.stats import norm

from fl_core.audit.published import noised_rounds, stated_claims
from fl_core.recipes.catalog import find_method
from fl_core.recipes.mechanism import exponential_pace
from fl_core.recipes.published_claims import (
    ADP_PFL_CLAIMS,
    PER_RECORD,
    NoisedRounds,
    largest_round,
    linear_composition,
    split_budget,
)
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

OPACUS_ORDERS = [1 + tenth / 10 for tenth in range(1, 100)] + list(range(12, 64))


def rounds_of(multipliers, **changes):
    count = len(multipliers)
    facts = NoisedRounds(
        claimed=tuple(multipliers),
        effective=tuple(multipliers),
        shares=tuple(1 / (count - t) for t in range(count)),
        epsilon=3.0,
        delta=1e-5,
        sampling_rate=1.0,
        accounting_rate=1.0,
        cohort=10.0,
        batch_size=16,
        records=10_000,
        minibatches=1000.0,
    )
    return replace(facts, **changes)


@pytest.mark.parametrize(
    ("sigma", "nominal", "rounds", "passes", "records", "delta"),
    [  # FedDPA Table 1: the noise multipliers that its program draws for the printed ε
        (0.751, 2.0, 30, 3, 10_000, 0.02),
        (0.452, 16.0, 30, 3, 10_000, 0.02),
        (0.441, 2.0, 15, 2, 73_257, 0.1),
        (0.358, 8.0, 15, 2, 73_257, 0.1),
    ],
)
def test_feddpa_claims_the_printed_epsilon_at_the_noise_of_its_program(sigma, nominal, rounds, passes, records, delta):
    minibatches = rounds * passes * records / 16
    facts = rounds_of([sigma] * rounds, delta=delta, records=records, minibatches=minibatches)
    stated = PER_RECORD.epsilon(facts)
    assert stated == pytest.approx(nominal, rel=0.03)
    spent = opacus_rdp.compute_rdp(
        q=16 / records, noise_multiplier=sigma, steps=round(minibatches / rounds) * rounds, orders=OPACUS_ORDERS
    )
    by_opacus, _ = opacus_rdp.get_privacy_spent(orders=OPACUS_ORDERS, rdp=spent, delta=delta)
    assert stated == pytest.approx(by_opacus, rel=1e-9)
    assert PER_RECORD.certified(facts) > 5 * nominal  # the same noise, once per round and client


def test_a_rounds_epsilon_by_equation_25_is_the_least_over_orders():
    facts, orders = rounds_of([0.7, 3.0, 40.0]), 1 + np.geomspace(1e-4, 1e6, 400_001)
    by_round = [
        float(np.min(orders / (2 * (sigma / math.sqrt(10)) ** 2 * 10**2) + math.log(1e5) / (orders - 1)))
        for sigma in facts.claimed
    ]
    assert linear_composition(facts) == pytest.approx(sum(by_round), rel=1e-6)
    assert largest_round(facts) == pytest.approx(max(by_round), rel=1e-6)


def test_the_split_of_epsilon_follows_equation_11_and_its_noise_gives_each_part_back():
    total, growth = 20, 2.0
    paces = [exponential_pace(t + 1, total, growth, printed=True) for t in range(total)]
    facts = rounds_of([1.0] * total, shares=tuple(min(1.0, one / (total - t)) for t, one in enumerate(paces)))
    left, expected = 3.0, []
    for t in range(1, total + 1):
        part = min(left, math.exp(-growth * (1 - (t / total) ** 2)) * left * t / (total - t + 1))
        expected.append(part)
        left -= part
    found = split_budget(facts)
    assert found == pytest.approx([one for one in expected if one > 0])
    split = ADP_PFL_CLAIMS[2]
    assert split.epsilon(facts) == pytest.approx(3.0)
    multipliers = split.multipliers(facts)
    again = replace(facts, claimed=multipliers)  # noise of the sum is √m times that of an upload
    assert linear_composition(again) == pytest.approx(3.0)
    # Worth far less ε than is claimed: all clients add in full what the mean of m needs once.
    mu = math.sqrt(sum(one**-2 for one in multipliers))
    delta = norm.cdf(mu / 2 - split.certified(facts) / mu) - math.exp(split.certified(facts)) * norm.cdf(
        -mu / 2 - split.certified(facts) / mu
    )
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_noise_in_full_from_every_client_is_longer_by_the_root_of_their_number():
    facts = rounds_of([2.0, 5.0])
    in_full = ADP_PFL_CLAIMS[3]
    assert in_full.multipliers(facts) == pytest.approx([2 * math.sqrt(10), 5 * math.sqrt(10)])
    assert in_full.epsilon(facts) == 3.0
    assert in_full.certified(facts) < ADP_PFL_CLAIMS[0].certified(facts)


def test_claims_are_evaluated_on_a_run_as_published_and_on_no_other():
    options = {"clients": 6, "rounds": 2, "epsilon": 8.0, "model": "mlp-small", "partition": "iid", "delta": 1e-3}
    federation = Federation(FederationConfig(method="feddpa", guarantee="as-published", **options))
    while not federation.done.all():
        federation.run_round(RoundPlan.constant(1, clip_norm=1.0))
    facts = noised_rounds(federation)
    assert facts.records == int(federation.tables.train.count.sum())
    assert facts.minibatches == 2 * 6 * 4
    assert facts.claimed == pytest.approx(facts.effective, rel=1e-6)
    (stated,) = stated_claims(federation)
    assert stated.claim is PER_RECORD
    assert stated.certified == pytest.approx(federation.ledgers[0].epsilon_of_noise(), rel=1e-6)
    assert stated_claims(Federation(FederationConfig(method="feddpa", **options))) == ()
    assert find_method("acdp-pfsd").claims == ()  # nothing beyond what the claim ledger counts
