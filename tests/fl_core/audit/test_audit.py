"""The audit is silent about the true rounds, and sees every bug that is planted in them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fl_core.audit.audit import audit
from fl_core.audit.canaries import attack_canaries
from fl_core.audit.noise import attack_noise
from fl_core.audit.sensitivity import attack_sensitivity
from fl_core.base.errors import InputError
from fl_core.privacy.mechanism import PLACEMENTS
from fl_core.recipes.catalog import METHODS
from tests.fl_core.audit.bugs import BUGS, CLIP, small_audit
from tests.fl_core.plain import config

torch.set_num_threads(1)
FEW = {
    "feddpa": "personalization.samples=4",
    "fedaddp": "personalization.samples=4",
    "adp-pfl": "sparsification.samples=4",
}
"""Fisher information on a few samples: any will do here."""
PRIVATE = [name for name, recipe in METHODS.items() if recipe.private]


def test_silent_about_the_true_rounds_over_twenty_seeds():
    """At the joint level of 95 % one seed in twenty may alarm at first; an alarm that new canaries repeat is one in
    hundreds."""
    made = config(clients=30, rounds=4, partition="iid")
    alarms = 0
    for seed in range(20):
        canaries, _ = attack_canaries(made, CLIP, 60, seed)
        alarms += not (canaries.signal.contains(1) and canaries.spread.contains(1) and canaries.differs is None)
    assert alarms <= 4  # P[Binomial(20, 0.05) > 4] = 0.003
    assert not small_audit(1, canaries=60).findings


def test_scores_of_the_true_rounds_have_the_claimed_distributions():
    from scipy import stats

    made = config(clients=50, rounds=3, partition="iid")
    measured = [attack_canaries(made, CLIP, 200, seed)[0] for seed in range(6)]
    outside = np.concatenate([one.scores[~one.included] for one in measured])
    inside = np.concatenate([(one.scores - one.lengths)[one.included] for one in measured])
    assert stats.kstest(outside, "norm").pvalue > 1e-3
    assert stats.kstest(inside, "norm").pvalue > 1e-3
    assert all(one.lengths == pytest.approx(one.mu, rel=1e-5) for one in measured)


@pytest.mark.parametrize("bug", BUGS)
def test_every_planted_bug_is_seen_by_the_attacks_that_must_see_it(bug, monkeypatch):
    plant, expected = BUGS[bug]
    plant(monkeypatch)
    result = small_audit(canaries=200)
    assert expected <= {one.attack for one in result.findings if one.leak or one.attack == "canaries"}
    assert result.leaks
    assert result.verdict.startswith("Not as claimed")


@pytest.mark.parametrize(
    ("placement", "bug"),
    [
        ("distributed", "the same noise every round"),
        ("local", "√(σC) taken as the std"),
        ("local", "weights × 3 after the clip"),
    ],
)
def test_bugs_are_seen_in_other_placements(placement, bug, monkeypatch):
    BUGS[bug][0](monkeypatch)
    assert small_audit(placement=placement).leaks


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("method", PRIVATE)
def test_no_private_method_is_found_to_leak(method, placement):
    """Sensitivity and noise, whose tests raise a false alarm in one case of a thousand."""
    made = config(method, clients=10, rounds=4, placement=placement, sampling_rate=0.7, set=FEW.get(method, ""))
    assert attack_sensitivity(made, 0.7, 1).holds
    noise = attack_noise(made, 0.7, 1)
    assert not noise.too_low
    assert not noise.too_high
    assert not noise.repeated


@pytest.mark.parametrize("method", ["adp-pfl", "fedglp-adp", "dp-pfeddsu", "blur-lus"])
def test_canaries_of_other_methods_measure_the_claim(method):
    made = config(method, clients=25, rounds=4, partition="iid")
    canaries, _ = attack_canaries(made, 0.7, 100, 3)
    assert canaries.signal.contains(1)
    assert canaries.spread.contains(1)


def test_sampling_leaves_the_measured_mu_at_its_claim_for_rounds_taken_part_in():
    made = config(clients=60, rounds=10, sampling_rate=0.3, partition="iid")
    canaries, federation = attack_canaries(made, 0.7, 120, 5)
    sigma = federation.charging.ledgers[0].segments()[0][0]
    assert canaries.mu == pytest.approx(math.sqrt(10) / sigma, rel=1e-4)
    assert np.median(canaries.lengths) < 0.7 * canaries.mu
    assert canaries.signal.contains(1)
    assert canaries.gaussian is None
    assert canaries.one_run < 7.5


def test_published_methods_are_held_against_their_claim():
    """FedADDP's clip per coordinate lets √(size/M) of C through; ADP-PFL's weights follow the data."""
    made = config("fedaddp", guarantee="as-published", clients=30, rounds=3, partition="iid")
    result = audit(replace(made, set=FEW["fedaddp"]), 0.7, 60, 0)
    size = result.federation.model.size
    assert result.sensitivity.total == pytest.approx(math.sqrt(size / 30), rel=1e-2)
    assert result.canaries.signal.contains(math.sqrt(size / 30))
    assert result.leaks
    weighted = config("adp-pfl", guarantee="as-published", clients=8, rounds=3)
    measured = attack_sensitivity(weighted, 0.7, 0)
    assert measured.total > 1.5
    assert measured.uploads == pytest.approx(1, rel=1e-4)


def test_masked_noise_as_published_is_measured_below_its_claim():
    made = config("fedglp-adp", guarantee="as-published", clients=10, rounds=8, partition="iid", delta=0.01)
    made = replace(made, set="personalization.limit=0.6,personalization.noise_growth=0")
    noise = attack_noise(made, 0.7, 0)
    assert noise.too_low
    assert 0.5 < noise.least.value < 0.98


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "local-only"}, "releases nothing"),
        ({"method": "fedavg", "epsilon": math.inf}, "claims no epsilon"),
        ({"epsilon": math.inf}, "epsilon is inf"),
    ],
)
def test_what_claims_nothing_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        audit(replace(config(), **changes), 1.0, 50, 0)


def test_too_few_canaries_are_refused():
    with pytest.raises(InputError, match="canaries is 5"):
        audit(config(), 1.0, 5, 0)


def test_clients_with_budgets_of_their_own_are_held_against_their_own_claims():
    made = config(clients=20, rounds=4, partition="iid", client_epsilon="7.5,3", set="client_budget=own")
    result = audit(made, 0.7, 60, 2)
    lengths = result.canaries.lengths
    assert lengths.max() == pytest.approx(result.canaries.mu, rel=1e-3)
    assert lengths.min() < 0.7 * lengths.max()
    assert not result.findings
