"""The audit is silent about the true rounds, and sees every bug that is planted in them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fl_core.audit.audit import UNTRIED, audit
from fl_core.audit.canaries import attack_canaries
from fl_core.audit.charges import attack_charges
from fl_core.audit.noise import attack_noise
from fl_core.audit.public import attack_public
from fl_core.audit.sensitivity import attack_sensitivity
from fl_core.base.errors import InputError
from fl_core.privacy.mechanism import PLACEMENTS
from fl_core.recipes.catalog import METHODS
from fl_core.run.federation import Federation
from tests.fl_core.audit.bugs import BUGS, CLIP, attack, settings_of, small_audit
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


SEEN = [(bug, name) for bug in BUGS for name in sorted(BUGS[bug].seen_by)]


@pytest.mark.parametrize(("bug", "name"), SEEN, ids=[f"{bug}-{name}" for bug, name in SEEN])
def test_every_planted_bug_is_seen_by_the_attacks_that_must_see_it(bug, name, monkeypatch):
    BUGS[bug].plant(monkeypatch)
    found = attack(name, settings_of(bug))
    assert any(one.leak or one.attack == "canaries" for one in found)
    assert all(one.attack == name for one in found)


@pytest.mark.parametrize("bug", ["the same noise every round", "public figures of the exact sum"])
def test_what_an_attack_finds_is_the_verdict(bug, monkeypatch):
    BUGS[bug].plant(monkeypatch)
    result = small_audit()
    assert result.leaks
    assert result.verdict.startswith("Not as claimed: ")
    assert all(one.text in result.verdict for one in result.findings if one.leak)


QUIET = {
    "telemetry": {"telemetry_share": 0.3, "telemetry": "clip-bit,accuracy,loss,layer-norms"},
    "clip bit": {"bit_noise": 6.0, "sampling_rate": 0.4, "placement": "distributed"},
    "sampled": {"sampling_rate": 0.2},
    "fixed": {"sampling_rate": 0.2, "sampling": "fixed"},
}


@pytest.mark.parametrize("settings", QUIET)
@pytest.mark.parametrize("name", ["noise", "telemetry", "cohorts", "public", "charges"])
def test_attacks_are_silent_about_the_true_rounds(name, settings):
    """Each raises a false alarm in at most one case of a thousand."""
    made = config(clients=30, rounds=6, partition="iid", **QUIET[settings])
    assert not any(attack(name, made, seed) for seed in range(2))


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
@pytest.mark.parametrize("method", PRIVATE)
def test_books_and_public_state_of_every_method_are_what_they_say(method, guarantee):
    """As published, the ledger certifies what the noise that is really there is worth: no more, and no less."""
    made = config(method, clients=10, rounds=3, guarantee=guarantee, sampling_rate=0.7, set=FEW.get(method, ""))
    assert not attack_public(made, 0.7, 1).differing
    charges = attack_charges(made, 0.7, 1)
    assert not charges.findings
    assert charges.refused
    assert charges.certified == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "fedglp-adp", "without": "adaptive-clipping"},
        {"method": "dp-fedavg", "set": "personalization=growing-mask,mask_from=uploads"},
    ],
)
def test_masked_noise_of_one_clip_is_certified_as_what_it_is(changes):
    """Per-client masks over noise of 1/m each: some coordinate has the noise of few clients, and the ledger says so."""
    made = config(changes.pop("method"), guarantee="as-published", clients=10, rounds=4, partition="iid", **changes)
    charges = attack_charges(made, 0.7, 1)
    assert not charges.findings
    assert charges.certified == pytest.approx(1, abs=1e-5)


def test_what_is_not_attacked_is_named_in_the_verdict():
    bare = small_audit(1, canaries=60)
    untried = ("telemetry (none is bought)", "sampling (all clients take part in every round)")
    assert bare.not_attacked == (*untried, "the books after round 6", *UNTRIED)
    assert bare.verdict == (
        "No leak found: what the rounds release is what they claim and what the books were told. Not attacked: "
        f"{'; '.join(bare.not_attacked)}."
    )
    few = {"clients": 30, "rounds": 4, "partition": "iid"}
    whole = audit(config(**few, sampling_rate=0.5, telemetry_share=0.2), CLIP, 60, 1)
    assert whole.not_attacked == UNTRIED
    shared = audit(config(**few, placement="distributed", sampling="fixed", sampling_rate=0.5), CLIP, 60, 1)
    assert "which clients are drawn (no amplification is counted)" in shared.not_attacked
    assert "single uploads (their ε is computed from the shares of the noise)" in shared.not_attacked
    local = audit(config(**few, placement="local"), CLIP, 60, 1)
    assert "single uploads (their noise is drawn for the sum at once)" in local.not_attacked


@pytest.mark.parametrize(
    ("changes", "schedule"),
    [
        ({}, "fixed"),
        ({"noise_schedule": "adaptive"}, "adaptive"),
        ({"guarantee": "as-published"}, "adaptive"),
        ({"client_epsilon": "7.5,3", "set": "client_budget=own"}, "adaptive"),
    ],
)
def test_an_audit_has_the_noise_schedule_of_a_run(changes, schedule):
    """The environment decides for a run without a controller of the noise; the audit is about the same ledger."""
    made = config(clients=20, rounds=2, partition="iid", sampling_rate=0.5, **changes)
    result = audit(made, CLIP, 60, 0)
    assert result.federation.config.noise_schedule == schedule
    run = Federation(replace(made, noise_schedule=schedule))
    assert result.federation.charging.budgets[0].accountant == run.charging.budgets[0].accountant
    assert result.charges.kept is (True if schedule == "fixed" else None)
    assert result.charges.refused


@pytest.mark.parametrize(
    ("placement", "bug"),
    [
        ("distributed", "the same noise every round"),
        ("local", "√(σC) taken as the std"),
        ("local", "weights × 3 after the clip"),
    ],
)
def test_bugs_are_seen_in_other_placements(placement, bug, monkeypatch):
    BUGS[bug].plant(monkeypatch)
    assert small_audit(placement=placement).leaks


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("method", PRIVATE)
def test_no_private_method_is_found_to_leak(method, placement):
    """Sensitivity and noise, whose tests raise a false alarm in at most one case of a thousand."""
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
