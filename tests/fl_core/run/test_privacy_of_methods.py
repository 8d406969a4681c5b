"""What a claim of privacy rests on, for every private method of the catalogue in sound mode: sensitivity and noise.

Local training is a stub that makes updates of any size; what clients really train to is tested elsewhere.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fl_core.recipes.catalog import METHODS
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.plain import BODY, choose_cohorts, config, plan, release_of

torch.set_num_threads(1)
PRIVATE = [name for name, recipe in METHODS.items() if recipe.private]
LAYERS = (slice(0, BODY), slice(BODY, None))


class StubUpdates:
    """Local training that moves client i by scale·direction_i, the same in every run that it takes part in."""

    def __init__(self, federation: Federation, cohorts: list[list[int]], scale: float):
        federation.executor.train = self  # type: ignore[method-assign, assignment]
        self.cohorts, self.scale, self.calls = cohorts, scale, 0

    def __call__(self, work, images):
        clients = [client for cohort in self.cohorts[self.calls] for client in cohort]
        self.calls += 1
        assert len(clients) == len(work.parameters)
        moves = [
            torch.randn(work.parameters.shape[1], generator=torch.Generator().manual_seed(9 + one)) for one in clients
        ]
        sizes = torch.tensor([10.0 ** (one % 4) for one in clients])  # from C to a thousand times C
        moved = self.scale * sizes.unsqueeze(-1) * torch.stack(moves) if moves else torch.zeros_like(work.parameters)
        return work.parameters + moved, torch.ones(len(clients))


def neighbours(clients: int) -> list[list[int]]:
    """All clients, a half of them, and both without each of their clients."""
    everyone, half = list(range(clients)), [0, 2, 3]
    return [everyone, half] + [[one for one in cohort if one != gone] for cohort in (everyone, half) for gone in cohort]


def share_state(federation: Federation) -> None:
    """Give all runs the first one's state, as after releases that came out alike."""
    for tensors in ({"server": federation.server}, federation.state.runs, federation.clients):
        for value in tensors.values():
            value.copy_(value[:1].expand_as(value).clone())


def sums_of_neighbours(made: FederationConfig, monkeypatch, clip: float) -> tuple[Federation, np.ndarray, dict]:
    """Sums `[cohorts, size]` of the second round, in which neighbouring cohorts meet; the first one was common."""
    cohorts = neighbours(5)
    everyone = [cohorts[0]] * len(cohorts)
    choose_cohorts(monkeypatch, *everyone, *cohorts)
    federation = Federation(made, runs=len(cohorts))
    federation.start(range(len(cohorts)), [RunSettings(seed=5)] * len(cohorts))
    StubUpdates(federation, [everyone, cohorts], scale=1.0)
    federation.run_round(plan(len(cohorts), clip))
    share_state(federation)
    before = {name: value.clone() for name, value in federation.state.runs.items()}
    report = federation.run_round(plan(len(cohorts), clip))
    assert report.figures["noise_multiplier"].tolist() == [0.0] * len(cohorts)
    assert report.figures["clipped_share"].tolist() == [1.0] * len(cohorts)
    assert not report.figures["rejected_updates"].any()
    return federation, release_of(federation).double().numpy(), before


def changes(sums: np.ndarray) -> np.ndarray:
    """What leaving out a client changes about the sums, `[clients + half, size]`."""
    return np.concatenate([sums[2:7] - sums[0], sums[7:] - sums[1]])


@pytest.mark.parametrize(
    ("method", "sampling"),
    [*((method, "poisson") for method in PRIVATE), ("fedglp-adp", "fixed"), ("adp-pfl", "fixed")],
)
def test_one_client_changes_the_released_sum_by_at_most_the_clip_norm(method, sampling, monkeypatch):
    """Every layer saturated, updates up to a thousand times C, clients of very different sizes, half of them gone."""
    clip = 0.37
    made = config(
        method, epsilon=math.inf, clients=5, sampling=sampling, sampling_rate=0.75, partition="dirichlet(0.1)"
    )
    federation, sums, before = sums_of_neighbours(made, monkeypatch, clip)
    sizes = federation.tables.train.count[0]
    assert sizes.max() > 10 * sizes.min()
    norms = np.linalg.norm(changes(sums), axis=1)
    assert (norms <= clip * (1 + 1e-4)).all()
    if method == "adp-pfl":  # a risky client's clip is smaller
        assert norms.max() == pytest.approx(clip, rel=1e-4)
        assert 0.09 * clip < norms.min() < 0.9 * clip
    else:
        assert norms == pytest.approx(clip, rel=1e-4)  # saturated: exactly C
    if federation.recipe.mechanism.clip == "layers":
        odds = before["log_odds"][0].double().numpy()
        weights = 1 / (1 + np.exp(-odds))
        weights /= weights.sum()
        assert abs(weights[0] - weights[1]) > 0.01
        for layer, weight in zip(LAYERS, weights, strict=True):
            by_layer = np.linalg.norm(changes(sums)[:, layer], axis=1)
            assert by_layer == pytest.approx(clip * math.sqrt(weight), rel=1e-4)


@pytest.mark.parametrize(
    ("method", "edits"),
    [
        ("dp-fedavg", "mechanism=layers"),
        ("fedper", "mechanism=layers"),
        ("fedglp-adp", "sparsification=top-k"),
        ("fedglp-adp", "sparsification=random"),
        ("dp-fedavg", "sparsification=random,sparsification.drawn_by=client,sparsification.sparsity=0.9"),
        ("ppsgd", "sparsification=top-weights"),
        ("dp-lg", "sparsification=top-k,sparsity=0.1"),
        ("pmtl-ft", "mechanism.client_budget=risk"),
        ("dp-pfeddsu", "mechanism=layers,sparsification.sparsity=0.3"),
        ("dp-fedavg", "mechanism.upload_noise=true,sparsification=top-k"),
    ],
)
def test_combinations_keep_the_sensitivity_too(method, edits, monkeypatch):
    made = config(method, epsilon=math.inf, clients=5, sampling_rate=0.75, set=edits)
    _, sums, _ = sums_of_neighbours(made, monkeypatch, clip=2.0)
    assert (np.linalg.norm(changes(sums), axis=1) <= 2.0 * (1 + 1e-4)).all()
    assert np.linalg.norm(changes(sums), axis=1).max() > 1.0


def test_layer_weights_of_a_plan_share_the_clip_norm_however_they_are_scaled(monkeypatch):
    cohorts = neighbours(5)
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(config("fedglp-adp", epsilon=math.inf, clients=5, sampling_rate=0.75), runs=len(cohorts))
    federation.start(range(len(cohorts)), [RunSettings(seed=5)] * len(cohorts))
    StubUpdates(federation, [cohorts], scale=1.0)
    weights = np.tile(np.array([0.2, 0.6]), (len(cohorts), 1))
    federation.run_round(replace(plan(len(cohorts), 0.5), settings={"layer_weights": weights}))
    change = changes(release_of(federation).double().numpy())
    assert np.linalg.norm(change[:, LAYERS[0]], axis=1) == pytest.approx(0.5 * math.sqrt(0.25), rel=1e-4)
    assert np.linalg.norm(change[:, LAYERS[1]], axis=1) == pytest.approx(0.5 * math.sqrt(0.75), rel=1e-4)


# ---------------------------------------------------------------- noise

RUNS, ROUNDS = 32, 4


def stand_still(work, images):
    """Training that ends where the update is measured from, so that it is zero."""
    return work.context.get("anchor", work.parameters), torch.ones(len(work.parameters))


def normalised_noise(made: FederationConfig, cohorts, monkeypatch, knobs=None) -> list[np.ndarray]:
    """Per round the sums `[runs, size]` of zero updates over their claimed std; NaN where no noise is due."""
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(replace(made, rounds=ROUNDS), runs=RUNS)
    federation.executor.train = stand_still
    participants = np.array([max(1, len(cohorts[run % len(cohorts)])) for run in range(RUNS)])
    pieces = []
    for round_index in range(ROUNDS):
        clips = np.random.default_rng(round_index).uniform(0.05, 8, RUNS)
        std = np.ones((RUNS, federation.model.size))
        if federation.recipe.mechanism.clip == "layers":
            odds = 1 / (1 + np.exp(-federation.state.runs["log_odds"].double().numpy()))
            for index, layer in enumerate(LAYERS):
                std[:, layer] = np.sqrt(2 * odds[:, index] / odds.sum(-1))[:, None]
        due = support(federation, round_index)
        settings = {name: np.full(RUNS, value) for name, value in (knobs or {}).items()}
        report = federation.run_round(RoundPlan(clips, np.ones(RUNS), settings=settings))
        scale = clips * report.figures["noise_multiplier"]
        scale = scale * np.sqrt(participants) if made.placement == "local" else scale
        released = release_of(federation).double().numpy()
        assert not released[~due].any()
        pieces.append(np.where(due, released / (std * scale[:, None]), np.nan))
    return pieces


def support(federation: Federation, round_index: int) -> np.ndarray:
    """Where the sum of this round must carry noise `[runs, size]` (bool)."""
    due = np.ones((RUNS, federation.model.size), dtype=bool)
    recipe = federation.recipe
    if recipe.personalization.kind == "fixed-part" and recipe.personalization.local != "none":
        due[:, LAYERS[0 if recipe.personalization.local == "body" else 1]] = False
    if "personal" in federation.state.runs:
        due &= federation.state.runs["personal"].numpy() == 0
    if recipe.sparsification.kind == "reparameterized":
        weights = federation.server[:, LAYERS[0]].abs().numpy()
        count = round(recipe.sparsification.sparsity * BODY)
        due[:, LAYERS[0]] &= weights >= np.sort(weights, axis=1)[:, [-count]]
    if recipe.sparsification.kind == "random":
        found = federation.public_mask(
            federation.state, federation.knob_values(RoundPlan.constant(RUNS))["sparsity"]
        ).numpy()
        assert (found.sum(1) == round(recipe.sparsification.sparsity * due.shape[1])).all()
        assert len(np.unique(found, axis=0)) == RUNS
        due &= found > 0
    return due


def check_normal(pieces: list[np.ndarray]) -> None:
    """Standard normal, coordinate by coordinate and run by run, and unlike from round to round and run to run."""
    values = np.concatenate(pieces)
    drawn = values[~np.isnan(values)]
    assert stats.kstest(drawn[::5], "norm").pvalue > 1e-3
    assert abs(drawn.mean()) < 5 / math.sqrt(len(drawn))
    for axis in (0, 1):
        counts = (~np.isnan(values)).sum(axis)
        squares = np.nansum(values**2, axis)[counts > 0]
        counts = counts[counts > 0]
        tails = np.minimum(stats.chi2.cdf(squares, counts), stats.chi2.sf(squares, counts))
        assert 2 * tails.min() > 1e-3 / len(tails)
    correlation = np.corrcoef(np.nan_to_num(values))
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 6 / math.sqrt((~np.isnan(values)).sum(1).min())


COHORTS = [[0, 1, 2, 3], [2], [], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("method", [name for name in PRIVATE if name not in ("dp-fedavg", "fedper", "dp-fedavg-fb")])
def test_the_noise_has_its_std_where_the_server_receives_something_and_is_nowhere_else(method, monkeypatch):
    """Layers: √L·σ·C_l; Fed-SMP and DP-pFedDSU: on the public mask; growing masks: on what is still shared."""
    made = config(method, clients=5, sampling_rate=0.6)
    check_normal(normalised_noise(made, COHORTS, monkeypatch))


@pytest.mark.parametrize("placement", ["distributed", "local"])
@pytest.mark.parametrize("method", ["fedglp-adp", "fed-smp", "blur-lus"])
def test_the_noise_of_the_other_placements(method, placement, monkeypatch):
    made = config(method, clients=5, sampling_rate=0.6, placement=placement)
    check_normal(normalised_noise(made, COHORTS, monkeypatch))


@pytest.mark.parametrize("placement", ["central", "distributed", "local"])
def test_noise_by_each_client_adds_up_to_the_same_also_where_nobody_came(placement, monkeypatch):
    """An empty cohort's sum must not give itself away by being silent."""
    made = config(clients=5, sampling_rate=0.6, placement=placement, set="mechanism.upload_noise=true")
    check_normal(normalised_noise(made, COHORTS, monkeypatch))


@pytest.mark.parametrize("method", ["fed-smp", "dp-pfeddsu"])
def test_the_noise_of_an_empty_cohort_lies_on_the_mask_that_the_controller_asked_for(method, monkeypatch):
    cohorts = [[], [0, 1]]
    choose_cohorts(monkeypatch, *cohorts)
    federation = Federation(config(method, clients=5, sampling_rate=0.6), runs=2)
    federation.start([0, 1], [RunSettings(seed=3)] * 2)
    federation.executor.train = stand_still
    federation.run_round(replace(plan(2), settings={"sparsity": np.array([0.1, 0.1])}))
    empty, full = release_of(federation)
    assert torch.equal(empty != 0, full != 0)
    torch.testing.assert_close(empty, full)
    assert int((empty[:BODY] != 0).sum()) == pytest.approx(0.1 * BODY, rel=0.2)
