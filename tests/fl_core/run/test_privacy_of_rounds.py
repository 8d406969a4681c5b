"""What a claim of privacy rests on in a round: sensitivity, noise, denominators, charges and signal classes.

The unit is a client, adjacency add/remove of a client (`local` and `fixed` show who takes part: there a client is
replaced by one that uploads nothing but noise).
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from scipy import optimize, stats

from fl_core.base.streams import normal_draws
from fl_core.privacy import accounting
from fl_core.privacy.mechanism import Clipped
from fl_core.privacy.telemetry import TELEMETRY
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import METRICS
from tests.fl_core.plain import (
    BODY,
    PRIVATE,
    StubTraining,
    choose_cohorts,
    config,
    plan,
    public_figures,
    release_of,
    same_state,
    snapshot,
)
from tests.fl_core.privacy.independent import require_within_budget

torch.set_num_threads(1)
DELTA = 1e-5


def gdp_epsilon(mu: float, delta: float = DELTA) -> float:
    """Epsilon of the Gaussian mechanism by SciPy (Dong, Roth, Su 2022, corollary 2.13)."""

    def excess(epsilon: float) -> float:
        low, high = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(stats.norm.cdf(low) - np.exp(epsilon + stats.norm.logcdf(high))) - delta

    return float(optimize.brentq(excess, 1e-9, 200, xtol=1e-12))


# ---------------------------------------------------------------- sensitivity


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("method", PRIVATE)
def test_one_client_changes_the_released_sum_by_at_most_the_clip_norm(method, sampling, executor, monkeypatch):
    """Noise off, updates saturated by a huge learning rate, sizes from 2 to hundreds, down to half of the cohort."""
    clip = 0.37
    made = config(
        method, epsilon=math.inf, sampling=sampling, sampling_rate=0.75, partition="dirichlet(0.1)", executor=executor
    )
    made = replace(made, learning_rate=30.0, local_epochs=0.5)
    everyone, half = list(range(8)), [0, 2, 3, 7]
    cohorts = [everyone, half]
    for cohort in (everyone, half):
        cohorts += [[client for client in cohort if client != gone] for gone in cohort]
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(made, runs=len(cohorts))
    same = [RunSettings(seed=5) for _ in cohorts]
    federation.start(range(len(cohorts)), same)
    sizes = federation.tables.train.count[0]
    assert sizes.max() > 10 * sizes.min()
    report = federation.run_round(plan(len(cohorts), clip))
    assert report.figures["noise_multiplier"].tolist() == [0.0] * len(cohorts)
    assert report.figures["clipped_share"].tolist() == [1.0] * len(cohorts)
    assert not report.figures["rejected_updates"].any()
    sums = release_of(federation).double().numpy()
    change = np.concatenate([sums[2:10] - sums[0], sums[10:] - sums[1]])
    assert np.linalg.norm(change, axis=1) == pytest.approx(clip, rel=1e-4)  # saturated: exactly C, never above


def test_unsaturated_clients_are_not_scaled_up_to_the_clip_norm(monkeypatch):
    choose_cohorts(monkeypatch, [0, 1], [0])
    federation = Federation(config(epsilon=math.inf), runs=2)
    federation.start([0, 1], [RunSettings(seed=5)] * 2)
    report = federation.run_round(plan(2, clip=100.0))
    change = (release_of(federation)[0] - release_of(federation)[1]).norm()
    total = 2 * report.figures["update_norm"][0] - report.figures["update_norm"][1]
    assert float(change) == pytest.approx(total, rel=1e-4)
    assert report.figures["clipped_share"].tolist() == [0, 0]


@pytest.mark.parametrize("placement", ["central", "distributed"])
@pytest.mark.parametrize("sampling_rate", [1.0, 0.6])
def test_the_noise_does_not_depend_on_who_takes_part(placement, sampling_rate, monkeypatch):
    """With one and the same noise stream, cohorts that differ by a client release sums that differ by at most C."""
    cohorts = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [0], []]
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(config(placement=placement, sampling_rate=sampling_rate, learning_rate=30.0), runs=4)
    federation.start(range(4), [RunSettings(seed=2)] * 4)
    federation.run_round(plan(4, 0.5))
    sums = release_of(federation).double()
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(0.5, rel=1e-3)
    assert float((sums[2] - sums[3]).norm()) == pytest.approx(0.5, rel=1e-3)
    assert float(sums[3].norm()) > 10  # the empty cohort's is noise, not nothing


@pytest.mark.parametrize("norm", [1e-9, 1e-3, 1.0, 1e3, 1e9])
@pytest.mark.parametrize("size", [1e-25, 1e-19, 1e-6, 1.0, 1e6, 1e15, 1e17, 1e25, math.nan, math.inf])
def test_no_update_whatever_its_size_passes_any_allowed_clip_norm(norm, size):
    """Float32 squares underflow and overflow; the sum is measured in float64."""
    federation = Federation(config(epsilon=math.inf, clients=2))
    StubTraining(federation, change=size)
    report = federation.run_round(plan(clip=norm))
    total = float(release_of(federation).double().norm())
    assert total <= 2 * norm * (1 + 1e-5)
    broken = not size < 1e18
    assert report.figures["rejected_updates"].tolist() == [2 if broken else 0]
    if broken:
        assert total == 0


# ---------------------------------------------------------------- noise

RUNS, ROUNDS = 48, 6


def noise_of(monkeypatch, made, cohorts, clips) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Released sums `[rounds, runs, size]` of updates that are zero, clips and noise multipliers `[rounds, runs]`."""
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(replace(made, rounds=ROUNDS), runs=RUNS)
    StubTraining(federation)
    releases, sigmas = [], []
    for clip in clips:
        report = federation.run_round(replace(plan(RUNS), clip_norm=clip))
        releases.append(release_of(federation).double().numpy())
        sigmas.append(report.figures["noise_multiplier"])
    return np.array(releases), np.array(clips), np.array(sigmas)


@pytest.mark.parametrize(
    ("method", "placement", "sampling_rate"),
    [
        ("dp-fedavg", "central", 1.0),
        ("dp-fedavg", "central", 0.4),
        ("dp-fedavg", "distributed", 0.4),
        ("dp-fedavg", "local", 0.4),
        ("fedper", "central", 1.0),
        ("fedper", "local", 0.4),
        ("dp-fedavg-fb", "distributed", 1.0),
    ],
)
def test_every_released_coordinate_carries_the_claimed_noise_and_no_other_any(
    method, placement, sampling_rate, monkeypatch
):
    """Updates off, another clip in every round and run; std C*sigma, or C*sigma*sqrt(m) where each client noises."""
    cohorts = [[0, 1, 2, 3, 4], [2], [], list(range(8))]
    clips = np.random.default_rng(0).uniform(0.05, 8, size=(ROUNDS, RUNS))
    made = config(method, placement=placement, sampling_rate=sampling_rate, telemetry_share=0.1)
    releases, clips, sigmas = noise_of(monkeypatch, made, cohorts, clips)
    participants = np.array([max(1, len(cohorts[run % 4])) for run in range(RUNS)])
    std = clips * sigmas * (np.sqrt(participants) if placement == "local" else 1.0)
    normal = (releases / std[..., None]).reshape(ROUNDS * RUNS, -1)
    shared = BODY if method == "fedper" else normal.shape[1]
    assert not normal[:, shared:].any()
    normal = normal[:, :shared]
    assert stats.kstest(normal.ravel()[::7], "norm").pvalue > 1e-3
    # Each coordinate by itself, with a Bonferroni correction over all of them; then each round, each run.
    for axis in (0, 1):
        squares = (normal**2).sum(axis=axis)
        p = 2 * np.minimum(*(tail(squares, normal.shape[axis]) for tail in (stats.chi2.cdf, stats.chi2.sf)))
        assert p.min() > 1e-3 / len(p)
    assert abs(normal.mean()) < 5 / math.sqrt(normal.size)
    # Fresh in every round and every run: rows are uncorrelated.
    correlation = np.corrcoef(normal)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 6 / math.sqrt(shared)


@pytest.mark.parametrize("placement", ["central", "distributed", "local"])
def test_the_clip_bit_carries_the_noise_that_was_paid_for(placement, monkeypatch):
    """Andrew et al. 2021: sum(b - 1/2) + N(0, sigma_b^2) with sigma_b half the multiplier, over the expected cohort."""
    cohorts = [[0, 1, 2, 3, 4], [2], [], list(range(8))]
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(config(placement=placement, sampling_rate=0.4, telemetry_share=0.2, rounds=20), runs=RUNS)
    StubTraining(federation)
    within = np.array([len(cohorts[run % 4]) for run in range(RUNS)])
    scores, releases = [], []
    for _ in range(20):
        report = federation.run_round(plan(RUNS))
        (charge,) = federation.ledgers[0].charges[-1:]
        paid = {release.name: release.noise_multiplier for release in charge.releases}
        std = paid["clip-bit"] / 2 * (np.sqrt(np.maximum(1, within)) if placement == "local" else 1)
        expected = 0.5 + within / 2 / (0.4 * 8)
        scores.append((report.figures["unclipped_share_noised"] - expected) * (0.4 * 8) / std)
        releases.append(release_of(federation)[:, 0].numpy() / paid["update"])
    scores = np.array(scores)
    assert stats.kstest(scores.ravel(), "norm").pvalue > 1e-3
    chi2 = float((scores**2).sum())
    assert 1e-3 < stats.chi2.cdf(chi2, scores.size) < 1 - 1e-3
    # Independent of the update's noise, which its own stream draws.
    assert abs(np.corrcoef(scores.ravel(), np.array(releases).ravel())[0, 1]) < 5 / math.sqrt(scores.size)


def test_an_unclipped_share_counts_the_clients_within_the_clip_norm():
    federation = Federation(config(epsilon=math.inf, telemetry_share=0.3, learning_rate=0.05), runs=1)
    norms = federation.run_round(plan(clip=1e6))
    assert norms.figures["unclipped_share_noised"] == pytest.approx(1.0)
    assert federation.run_round(plan(clip=1e-6)).figures["unclipped_share_noised"] == pytest.approx(0.0)
    middle = federation.run_round(plan(clip=norms.figures["update_norm"][0]))
    assert middle.figures["unclipped_share_noised"] == pytest.approx(1 - middle.figures["clipped_share"])
    assert 0 < middle.figures["clipped_share"][0] < 1


# ---------------------------------------------------------------- the denominator


@pytest.mark.parametrize("method", PRIVATE)
def test_the_mean_divides_by_the_expected_cohort_never_by_the_realised_one(method, monkeypatch):
    cohorts = [[], [3], list(range(8)), [1, 2]]
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(config(method, sampling_rate=0.3), runs=4)
    before = federation.server.clone()
    report = federation.run_round(plan(4, clip=0.5, rate=0.7))
    expected = before + 0.7 * release_of(federation) / (0.3 * 8)
    torch.testing.assert_close(federation.server, expected, atol=1e-6, rtol=1e-6)
    assert report.figures["participants"].tolist() == [0, 1, 8, 2]
    assert report.ran.all()


def test_an_empty_cohort_releases_pure_noise_and_is_charged(monkeypatch):
    choose_cohorts(monkeypatch, [])
    federation = Federation(config("fedper", sampling_rate=0.1), runs=1)
    clients = federation.clients["local"].clone()
    stub = StubTraining(federation)
    report = federation.run_round(plan(clip=2.0), evaluate=True)
    assert stub.rows == 0
    normal = normal_draws((2410,), 0, "noise", 0)
    sigma = report.figures["noise_multiplier"][0]
    expected = (2 * sigma * normal[:BODY]).float()
    torch.testing.assert_close(release_of(federation)[0, :BODY], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(federation.clients["local"], clients)
    assert len(federation.ledgers[0].charges) == 1
    assert all(np.isfinite(value).all() for value in report.figures.values())


def test_fixed_cohorts_divide_by_their_size():
    federation = Federation(config(sampling="fixed", sampling_rate=0.3))
    before = federation.server.clone()
    report = federation.run_round(plan())
    assert report.figures["participants"] == 2
    torch.testing.assert_close(federation.server, before + release_of(federation) / 2)


# ---------------------------------------------------------------- charges


@pytest.mark.parametrize(
    "changes",
    [{}, {"sampling": "fixed", "sampling_rate": 0.5}, {"placement": "local", "sampling_rate": 0.5}],
    ids=["full", "fixed", "local"],
)
def test_rounds_without_amplification_spend_exactly_the_budget_by_the_gaussian_curve(changes):
    federation = Federation(config(rounds=5, **changes))
    StubTraining(federation)
    precision = 0.0
    for index in range(5):
        figures = federation.run_round(plan()).figures
        precision += figures["noise_multiplier"][0] ** -2
        assert figures["epsilon_spent"][0] == pytest.approx(gdp_epsilon(math.sqrt(precision)), rel=1e-6)
        assert figures["epsilon_left"][0] == pytest.approx(7.5 - figures["epsilon_spent"][0])
        assert figures["budget_left"][0] == pytest.approx(1 - (index + 1) / 5, abs=1e-4)
    assert 7.5 * (1 - 1e-4) < gdp_epsilon(math.sqrt(precision)) <= 7.5


@pytest.mark.parametrize("sampling_rate", [1.0, 0.3])
@pytest.mark.parametrize("telemetry", [0.0, 0.25])
def test_a_whole_run_stays_within_its_target_by_pld(sampling_rate, telemetry):
    federation = Federation(config(rounds=30, sampling_rate=sampling_rate, telemetry_share=telemetry))
    StubTraining(federation)
    while not federation.done.all():
        report = federation.run_round(plan())
    (ledger,) = federation.ledgers
    spent = accounting.epsilon(ledger.segments(), DELTA)
    assert spent <= 7.5
    assert spent > (7.49 if sampling_rate == 1 else 5.5)  # and does not waste it
    assert spent <= report.figures["epsilon_spent"][0] + 1e-9 <= 7.5 + 1e-9
    require_within_budget(ledger)
    assert sum(steps for _, _, steps in ledger.segments()) == 30


def test_telemetry_is_paid_out_of_the_rounds_own_share():
    """The update's multiplier rises to s/sqrt(1-t), the bit's is s/sqrt(t), and jointly they are s."""
    free, paying = Federation(config()), Federation(config(telemetry_share=0.2))
    without, figures = free.run_round(plan()).figures, paying.run_round(plan()).figures
    joint = without["noise_multiplier"][0]
    assert figures["noise_multiplier"][0] == pytest.approx(joint / math.sqrt(0.8))
    (charge,) = paying.ledgers[0].charges
    paid = {release.name: release.noise_multiplier for release in charge.releases}
    assert paid == {"update": figures["noise_multiplier"][0], "clip-bit": pytest.approx(joint / math.sqrt(0.2))}
    assert sum(sigma**-2 for sigma in paid.values()) == pytest.approx(joint**-2)
    assert paying.ledgers[0].segments()[0][0] == pytest.approx(joint, rel=1e-9)
    assert figures["epsilon_spent"] == pytest.approx(without["epsilon_spent"])
    assert "unclipped_share_noised" in figures
    assert "unclipped_share_noised" not in without
    accounted = {name for name, figure in METRICS.items() if figure.signal_class == "accounted"}
    assert accounted == {"risk_noised", *(one.figure for one in TELEMETRY.values())}  # each needs a charge, and a test


def test_budget_shares_buy_their_part_of_what_is_left():
    """At q = 1 the precisions 1/sigma^2 add up; a share w takes w of what is left of mu^2."""
    federation = Federation(config(rounds=4))
    StubTraining(federation)
    mu = optimize.brentq(lambda mu: gdp_epsilon(mu) - 7.5, 0.1, 10, xtol=1e-12)
    left = mu**2
    for share in (0.1, 0.5, 0.25, 1.0):
        figures = federation.run_round(plan(shares=np.array([share]))).figures
        assert figures["noise_multiplier"][0] == pytest.approx((share * left) ** -0.5, rel=1e-4)
        left *= 1 - share
    assert figures["epsilon_spent"][0] == pytest.approx(7.5, rel=1e-4)
    assert figures["epsilon_spent"][0] <= 7.5


@pytest.mark.parametrize("method", PRIVATE)
@pytest.mark.parametrize("sampling_rate", [1.0, 0.5])
def test_a_refused_round_touches_nothing(method, sampling_rate, monkeypatch):
    made = config(method, sampling_rate=sampling_rate, telemetry_share=0.1)
    federation = Federation(made, runs=1)
    federation.run_round(plan(shares=np.array([1.0])))
    stub = StubTraining(federation, change=1.0)
    reads = []
    monkeypatch.setattr("fl_core.training.images.Images.read", lambda *_: reads.append(1))
    before = snapshot(federation)
    for shares in (np.array([1.0]), np.array([1e-3]), None):
        report = federation.run_round(plan(shares=shares))
        assert report.refused.tolist() == [True]
        assert report.ran.tolist() == [False]
        assert all(np.isnan(value).all() for value in report.figures.values())
    assert stub.rows == 0
    assert not reads
    assert same_state(before, snapshot(federation))


def test_a_refused_row_does_not_stop_the_others():
    federation, alone = Federation(config("fedper"), runs=3), Federation(config("fedper"))
    alone.start([0], [RunSettings(seed=2)])
    federation.run_round(plan(3, shares=np.array([1.0, 1.0, 0.2])))
    alone.run_round(plan(shares=np.array([0.2])))
    server, heads = federation.server.clone(), federation.clients["local"].clone()
    report = federation.run_round(plan(3))
    alone.run_round(plan())
    assert report.refused.tolist() == [True, True, False]
    assert federation.rounds.tolist() == [1, 1, 2]
    assert torch.equal(federation.server[:2], server[:2])
    assert torch.equal(federation.clients["local"][:2], heads[:2])
    torch.testing.assert_close(federation.server[2], alone.server[0], atol=1e-5, rtol=1e-4)
    assert [len(ledger.charges) for ledger in federation.ledgers] == [1, 1, 2]


def test_the_charge_comes_before_any_training():
    federation = Federation(config())
    seen = []

    def train(work, images):
        seen.append(len(federation.ledgers[0].charges))
        return work.parameters, torch.zeros(len(work.parameters))

    federation.executor.train = train
    federation.run_round(plan())
    federation.run_round(plan())
    assert seen == [1, 2]


def test_a_plan_that_is_bad_in_one_row_charges_none():
    federation = Federation(config(), runs=2)
    before = snapshot(federation)
    for field, value in (("budget_share", 1.5), ("clip_norm", math.nan), ("server_learning_rate", 0.0)):
        bad = replace(plan(2, shares=np.array([0.5, 0.5])), **{field: np.array([0.5, value])})
        with pytest.raises(ValueError, match=field):
            federation.run_round(bad)
    assert same_state(before, snapshot(federation))


HOSTILE = some.one_of(some.floats(1e-9, 1), some.sampled_from([1.0, 1e-9, 1 - 1e-16, 0.5]))


@pytest.fixture(scope="module", params=[(1.0, 0.0), (0.3, 0.2)], ids=["q=1", "q=0.3-telemetry"])
def stubbed(request):
    rate, telemetry = request.param
    federation = Federation(config(rounds=12, sampling_rate=rate, telemetry_share=telemetry))
    StubTraining(federation)
    return federation


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shares=some.lists(some.one_of(HOSTILE, some.none()), min_size=1, max_size=12), epsilon=some.floats(0.5, 50))
def test_no_sequence_of_budget_shares_overspends(stubbed, shares, epsilon):
    stubbed.start([0], [RunSettings(seed=1, epsilon=epsilon)])
    charged = []
    for share in shares:
        report = stubbed.run_round(plan(shares=None if share is None else np.array([share])))
        charge = stubbed.ledgers[0].charges
        assert len(charge) == stubbed.rounds[0]
        assert bool(report.refused[0]) != bool(report.ran[0])
        if report.ran[0]:
            charged.append(report.figures["epsilon_spent"][0])
    assert charged == sorted(charged)
    assert not charged or charged[-1] <= epsilon
    (ledger,) = stubbed.ledgers
    if stubbed.config.sampling_rate == 1:
        precision = math.fsum(charge.noise_multiplier**-2 for charge in ledger.charges)
        if precision > 1e-2:
            assert gdp_epsilon(math.sqrt(precision)) <= epsilon * (1 + 1e-9)
    else:
        assert accounting.epsilon(ledger.segments(), DELTA) <= epsilon
    require_within_budget(ledger)


# ---------------------------------------------------------------- what is called public


@pytest.mark.parametrize("placement", ["central", "distributed", "local"])
@pytest.mark.parametrize("method", ["dp-fedavg", "fedper", "fedglp-adp", "fed-smp", "dp-pfeddsu", "adp-pfl"])
def test_public_figures_are_functions_of_the_plan_and_the_release(method, placement, monkeypatch):
    """Two runs release the same sums out of different cohorts, norms, losses and rejections: public figures agree."""
    cohorts = [[0], [1, 2, 3, 5, 7]]
    released = torch.randn(2410, generator=torch.Generator().manual_seed(0))

    def clip_factors(updates, present, clip_norms, blocks):
        within = present & (torch.rand(present.shape) < 0.5)
        return Clipped(torch.rand(*present.shape, len(blocks)), torch.rand(present.shape) * present, within, present)

    monkeypatch.setattr("fl_core.run.release.clip_factors", clip_factors)
    monkeypatch.setattr("fl_core.run.release.scaled_sum", lambda updates, *_: released.repeat(len(updates), 1))
    monkeypatch.setattr("fl_core.privacy.noise_model.noise_std", lambda *arguments: torch.full((2,), 0.8))
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(config(method, placement=placement, sampling_rate=0.4), runs=2)
    federation.start([0, 1], [RunSettings(seed=4), RunSettings(seed=4, partition="iid", learning_rate=3.0)])
    for _ in range(2):
        report = federation.run_round(plan(2))
        public = {name: report.figures[name] for name in public_figures() if name in report.figures}
        assert len(public) >= 8
        for name, (first, second) in public.items():
            assert first == second, name
        assert report.figures["participants"].tolist() == [1, 5]
        assert report.figures["train_loss"][0] != report.figures["train_loss"][1]


@pytest.mark.parametrize("placement", ["central", "distributed", "local"])
def test_the_expected_norm_of_the_noise_is_not_that_of_the_realised_cohort(placement, monkeypatch):
    choose_cohorts(monkeypatch, [0], list(range(8)))
    federation = Federation(config(placement=placement, sampling_rate=0.5), runs=2)
    federation.start([0, 1], [RunSettings(seed=4)] * 2)
    report = federation.run_round(plan(2))
    ratio, norm = report.figures["release_norm_ratio"], release_of(federation).norm(dim=1).double().numpy()
    expected = 0.7 * report.figures["noise_multiplier"] * math.sqrt(2410)
    expected = expected * math.sqrt(0.5 * 8) if placement == "local" else expected
    assert ratio == pytest.approx(norm / expected, rel=1e-5)


def test_only_what_is_released_moves_the_public_figures_of_later_rounds():
    """release_alignment is the cosine with the previous released sum, server_norm the norm of the server's model."""
    federation = Federation(config())
    assert federation.run_round(plan()).figures["release_alignment"] == 0
    previous = release_of(federation).double()
    figures = federation.run_round(plan()).figures
    now = release_of(federation).double()
    cosine = float((now * previous).sum() / now.norm() / previous.norm())
    assert figures["release_alignment"][0] == pytest.approx(cosine, abs=1e-6)
    assert figures["server_norm"][0] == pytest.approx(float(federation.server.double().norm()), rel=1e-6)


def test_infinite_epsilon_is_reported_as_spent_once_something_is_out():
    for method in ("fedavg", "dp-fedavg", "fedper"):
        federation = Federation(config(method, epsilon=math.inf))
        figures = federation.run_round(plan()).figures
        assert figures["epsilon_spent"] == math.inf
        assert figures["epsilon_left"] == math.inf


@pytest.mark.parametrize("sampling_rate", [1.0, 0.5])
def test_without_noise_and_with_a_huge_clip_dp_fedavg_is_fedavg(sampling_rate):
    models = []
    for method in ("fedavg", "dp-fedavg", "dp-fedavg-fb"):
        federation = Federation(config(method, epsilon=math.inf, sampling_rate=sampling_rate), runs=2)
        for _ in range(3):
            federation.run_round(plan(2, clip=1e9, rate=0.8))
        models.append(federation.server)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])
