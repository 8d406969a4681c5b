"""Paid telemetry: what clients contribute, what it costs, and what comes out."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from envs import make_core
from envs.resets import choose_instance
from fl_core.base.errors import InputError
from fl_core.privacy.telemetry import TELEMETRY, Witness, parse_telemetry
from fl_core.recipes.clipping import layer_norms
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

EVERYTHING = "clip-bit,accuracy,loss,layer-norms"


def config(method: str = "dp-fedavg", **changes) -> FederationConfig:
    settings = {"clients": 8, "rounds": 4, "local_steps": 2, "executor": "sequential", "telemetry": EVERYTHING}
    return FederationConfig(method=method, **{"telemetry_share": 0.4, "delta": 1e-3, **settings, **changes})


def witness(values: list[float]) -> Witness:
    """Clients that report these values of everything, however absurd."""
    column = torch.tensor(values)
    layers = torch.stack([column, column, column], dim=-1)
    return Witness(column > 0, lambda: layers, lambda: (column, column))


@given(st.lists(st.floats(width=32), min_size=1, max_size=5))
@pytest.mark.parametrize("name", TELEMETRY)
def test_no_client_moves_a_sum_by_more_than_one(name, values):
    contributions = TELEMETRY[name].contributions(witness(values))
    norms = torch.linalg.vector_norm(contributions, dim=-1)
    assert torch.isfinite(norms).all()
    assert float(norms.max()) <= 1 + 1e-6


@pytest.mark.parametrize("name", ["accuracy", "loss", "clip-bit"])
def test_the_mean_of_values_in_range_comes_back(name):
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    mean = TELEMETRY[name].contributions(witness(values)).mean(0, keepdim=True)
    assert float(TELEMETRY[name].estimate(mean)) == pytest.approx(0.6)


def test_a_value_beyond_its_range_counts_as_the_end_of_it():
    loss = TELEMETRY["loss"]
    mean = loss.contributions(witness([7.0, math.inf, 0.5])).mean(0, keepdim=True)
    assert float(loss.estimate(mean)) == pytest.approx((2 + 2 + 0.5) / 3)


def test_layer_norms_of_a_clipped_update_are_released_as_they_are():
    federation = Federation(config(epsilon=math.inf, sampling_rate=1.0))
    start = federation.server.clone()
    report = federation.run_round(RoundPlan.constant(1, clip_norm=1e-3))  # every update is clipped to this length
    names = [name for name in report.figures if name.startswith("layer_norm_noised.")]
    assert names == [f"layer_norm_noised.{span.name}" for span in federation.model.layers]
    noised = np.array([report.figures[name][0] for name in names])
    moved = layer_norms(federation.model, federation.server - start)[0].numpy() / 1e-3
    assert (noised**2).sum() <= 1 + 1e-5
    assert (moved <= noised + 1e-4).all()  # the norm of a mean is at most the mean of the norms
    assert noised.min() > 0


def test_accuracy_and_loss_are_those_of_the_trained_clients_on_their_hold_outs(monkeypatch):
    federation = Federation(config(epsilon=math.inf))
    trained = {}
    train = federation.executor.train

    def watched(work, images):
        trained["models"], losses = train(work, images)
        return trained["models"], losses

    monkeypatch.setattr(federation.executor, "train", watched)
    report = federation.run_round(RoundPlan.constant(1))
    accuracies, losses = [], []
    for client, model in enumerate(trained["models"]):
        images, labels = federation.images.read(federation.tables.test.of(0, client))
        logits = federation.model.logits(model, images)
        accuracies.append(float((logits.argmax(-1) == labels).float().mean()))
        losses.append(min(2.0, float(torch.nn.functional.cross_entropy(logits, labels)) / math.log(10)))
    assert report.figures["accuracy_noised"][0] == pytest.approx(np.mean(accuracies), abs=1e-5)
    assert report.figures["loss_noised"][0] == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("placement", ["central", "distributed", "local"])
def test_each_release_carries_the_noise_that_was_paid_for(placement, monkeypatch):
    """Neutral contributions, so that nothing but noise comes out: N(0, 1) in units of what the ledger was charged."""
    federation = Federation(config(placement=placement, rounds=30, sampling_rate=0.5), runs=6)
    for name, one in dict(TELEMETRY).items():
        neutral = one.estimate(torch.zeros(len(federation.model.layers) if one.per_layer else 1))
        monkeypatch.setitem(TELEMETRY, name, replace(one, measure=partial(_always, neutral)))
    scores = []
    while not federation.done.all():
        report = federation.run_round(RoundPlan.constant(6))
        paid = {one.name: one.noise_multiplier for one in federation.ledgers[0].charges[-1].releases}
        people = np.maximum(1, report.figures["participants"]) if placement == "local" else np.ones(6)
        row = []
        for name, one in TELEMETRY.items():
            for figure in [key for key in report.figures if key.partition(".")[0] == one.figure]:
                unit = one.estimate(torch.ones(1)) - one.estimate(torch.zeros(1))
                deviation = report.figures[figure] - float(one.estimate(torch.zeros(1)))
                row.append(deviation / float(unit) * federation.config.cohort / (paid[name] * np.sqrt(people)))
        scores.append(np.array(row))
    normal = np.stack(scores)  # [rounds, values, runs]
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
    columns = normal.transpose(1, 0, 2).reshape(normal.shape[1], -1)
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 5 / math.sqrt(columns.shape[1])  # no two share their noise


def _always(value: torch.Tensor, witness: Witness) -> torch.Tensor:
    return value.expand(len(witness.within), -1)


def test_the_share_is_split_as_asked_and_joins_to_the_rounds_noise():
    made = config(telemetry="accuracy=0.75,loss=0.25", telemetry_share=0.2)
    free, paying = Federation(config(telemetry_share=0.0)), Federation(made)
    joint = free.run_round(RoundPlan.constant(1)).figures["noise_multiplier"][0]
    paying.run_round(RoundPlan.constant(1))
    paid = {one.name: one.noise_multiplier for one in paying.ledgers[0].charges[0].releases}
    expected = {"update": joint / math.sqrt(0.8), "accuracy": joint / math.sqrt(0.15), "loss": joint / math.sqrt(0.05)}
    assert paid == pytest.approx(expected)
    assert paying.ledgers[0].charges[0].noise_multiplier == pytest.approx(joint)


def test_a_bit_noise_of_its_own_is_charged_as_andrew_et_al_do():
    """σ_Δ = (σ⁻² − (2σ_b)⁻²)^(−1/2), with the bit's multiplier 2σ_b."""
    made = config(telemetry="clip-bit", telemetry_share=0.0, bit_noise=8.0)
    federation = Federation(made)
    joint = federation.ledgers[0].uniform_noise_multiplier
    federation.run_round(RoundPlan.constant(1))
    paid = {one.name: one.noise_multiplier for one in federation.ledgers[0].charges[0].releases}
    assert paid["clip-bit"] == pytest.approx(16.0)
    assert paid["update"] == pytest.approx((joint**-2 - 16.0**-2) ** -0.5)


def test_a_bit_noise_that_would_spend_more_than_the_round_is_refused():
    with pytest.raises(InputError, match=r"^bit_noise is 0\.1, but it must be above half the round's noise multiplier"):
        Federation(config(telemetry="clip-bit", bit_noise=0.1))


def test_a_round_noisier_than_planned_leaves_the_update_half_of_its_privacy():
    federation = Federation(config(telemetry="clip-bit", telemetry_share=0.0, bit_noise=1.5))
    plan = RoundPlan(np.ones(1), np.ones(1), budget_share=np.array([1e-4]))
    federation.run_round(plan)
    paid = {one.name: one.noise_multiplier for one in federation.ledgers[0].charges[0].releases}
    assert paid["clip-bit"] == pytest.approx(paid["update"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "telemetry is empty"),
        ("acuracy", "did you mean accuracy"),
        ("loss,loss", "named only once"),
        ("loss=0.5,accuracy=0.6", r"shares sum to 1\.1, and they must sum to 1"),
        ("loss=0.5,accuracy", "either all its releases need a share or none"),
        ("loss=nan", "not 'nan'"),
        ("loss=0,accuracy=1", "not '0'"),
        ("loss=half,accuracy=half", "not 'half'"),
    ],
)
def test_shares_that_make_no_sense_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_telemetry(text)
    with pytest.raises(InputError, match=message):
        config(telemetry=text)


def test_bit_noise_without_the_bit_is_refused():
    with pytest.raises(InputError, match="without the clip-bit"):
        config(telemetry="loss", bit_noise=5.0)


def test_accounted_signals_are_what_is_paid_for():
    core = make_core(task="digits", signals="accounted", telemetry="accuracy,layer-norms", rounds=3, clients=10)
    shown = [feature.name for feature in core.features if feature.signal_class == "accounted"]
    layers = [f"layer_norm_noised.{span.name}" for span in core.federation.model.layers]
    assert shown == ["accuracy_noised", *layers]
    core.reset([0], [choose_instance(core.pool, np.random.default_rng(0))])
    core.step(np.zeros((1, 1)))
    figures = core.history[0][-1]
    columns = {feature.name: value for feature, value in zip(core.features, core.observe()[0], strict=True)}
    assert columns["accuracy_noised"] == pytest.approx(np.clip(2 * figures["accuracy_noised"] - 1, -2, 2), abs=1e-5)
    assert columns[layers[0]] == pytest.approx(np.clip(2 * figures[layers[0]] - 1, -2, 2), abs=1e-5)


def test_a_client_that_diverged_tells_nothing():
    federation = Federation(config(epsilon=math.inf, telemetry="clip-bit,accuracy,loss"))
    train = federation.executor.train

    def broken(work, images):
        models, losses = train(work, images)
        models[0] = math.nan
        return models, losses

    federation.executor.train = broken
    whole = Federation(config(epsilon=math.inf, telemetry="clip-bit,accuracy,loss"))
    figures, healthy = (one.run_round(RoundPlan.constant(1)).figures for one in (federation, whole))
    assert figures["rejected_updates"][0] == 1
    for name, half in (("accuracy_noised", 0.5), ("unclipped_share_noised", 0.5), ("loss_noised", 1.0)):
        assert math.isfinite(figures[name][0])
        assert abs(figures[name][0] - healthy[name][0]) <= half / 8 + 1e-6


@pytest.mark.parametrize("method", ["dp-fedavg", "fedper", "dp-pfeddsu", "ppsgd", "adp-pfl", "fedglp-adp"])
@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
def test_a_cohort_of_nobody_releases_noise_and_nothing_else(method, executor):
    federation = Federation(config(method, sampling_rate=0.1, executor=executor), runs=2)
    empty = 0
    while not federation.done.all():
        report = federation.run_round(RoundPlan.constant(2))
        assert all(np.isfinite(values).all() for name, values in report.figures.items() if "noised" in name)
        empty += int((report.figures["participants"] == 0).sum())
    assert empty > 0
