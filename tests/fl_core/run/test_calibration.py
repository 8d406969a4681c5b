"""Length of updates on random data: near that of real ones, and a function of public settings alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fl_core.data.datasets as datasets
import fl_core.run.calibration as calibration
from fl_core import Federation, FederationConfig, RoundPlan, RunSettings, register_dataset
from fl_core.base.errors import InputError
from fl_core.data.datasets import load_dataset
from fl_core.run.calibration import calibrate, calibrated_norm, random_dataset

CONFIG = FederationConfig(executor="vectorized")


@pytest.mark.parametrize("changes", [{}, {"learning_rate": 0.1}, {"method": "adp-pfl"}])
def test_it_is_near_the_norm_of_real_updates(changes: dict[str, object]) -> None:
    config = FederationConfig(executor="vectorized", **changes)  # type: ignore[arg-type]
    report = Federation(config).run_round(RoundPlan.constant(1, clip_norm=1e6))
    assert 0.7 < calibrated_norm(config) / float(report.figures["update_norm"][0]) < 1.25


def test_one_step_of_one_client_is_the_gradient_on_random_data_times_the_rate() -> None:
    config = FederationConfig(clients=1, local_steps=1, partition="iid", delta=0.1, executor="vectorized")
    data = random_dataset(load_dataset("digits"), len(load_dataset("digits").train_labels))
    federation = Federation(config, dataset=data)
    rows = federation.tables.train.of(0, 0)
    config = replace(config, batch_size=len(rows))  # the whole training part of the only client
    initial = federation.model.initial(0, torch.device("cpu")).requires_grad_()
    logits = federation.model.logits_alone(initial, data.train_images[rows].float() / 16)
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits, data.train_labels[rows]), [initial])
    assert calibrated_norm(config) == pytest.approx(0.4 * float(gradient.norm()), rel=1e-3)


def test_no_private_sample_and_no_budget_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = calibrated_norm(CONFIG)
    calibration._calibrated.cache_clear()
    monkeypatch.setattr(datasets, "load_dataset", _refused)
    monkeypatch.setattr(datasets, "_load", _refused)
    assert calibrated_norm(CONFIG) == expected
    for changes in ({"epsilon": 2.0}, {"sampling_rate": 0.3}, {"rounds": 7}, {"noise_multiplier": 3.0}):
        assert calibrated_norm(FederationConfig(executor="vectorized", **changes)) == expected  # type: ignore[arg-type]


def _refused(*_: object, **__: object) -> None:
    raise AssertionError("a dataset was loaded")


def test_of_a_dataset_of_ones_own_the_samples_do_not_matter() -> None:
    draw = np.random.default_rng(0)
    norms = set()
    for name in ("first-forty", "other-forty"):
        images, labels = draw.integers(0, 255, (40, 8, 8)).astype(np.uint8), np.arange(40) % 4
        register_dataset(name, (images, draw.permutation(labels)))
        norms.add(calibrated_norm(FederationConfig(dataset=name, clients=8, executor="vectorized")))
    assert len(norms) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "mlp-small"},
        {"placement": "local"},
        {"placement": "distributed"},
        {"method": "fedglp-adp"},
        {"method": "dp-pfeddsu"},
        {"update_scale": 5.0},
    ],
)
def test_the_noised_coordinates_give_the_norm_of_the_noise_of_a_real_round(changes: dict[str, object]) -> None:
    config = FederationConfig(executor="vectorized", rounds=1, **changes)  # type: ignore[arg-type]
    found = calibrate(config)
    figures = Federation(config).run_round(RoundPlan.constant(1, clip_norm=0.5)).figures
    std = float(figures["clip_norm"][0] * figures["noise_multiplier"][0])
    per_client = math.sqrt(config.clients) if config.placement == "local" else 1.0
    norm = float(figures["release_noise"][0]) * config.clients
    assert std * per_client * math.sqrt(found.noised) == pytest.approx(norm, rel=1e-4)
    if "method" not in changes:
        assert found.noised == pytest.approx(found.size, rel=1e-4)


def test_a_runs_own_settings_count_but_its_hidden_scale_does_not() -> None:
    slow = FederationConfig(executor="vectorized", learning_rate=0.1, partition="iid")
    assert calibrated_norm(CONFIG, RunSettings(seed=4, learning_rate=0.1, partition="iid")) == calibrated_norm(slow)
    assert calibrated_norm(CONFIG, RunSettings(seed=4, update_scale=5.0)) == calibrated_norm(CONFIG)
    scaled = FederationConfig(executor="vectorized", update_scale=5.0)
    assert calibrated_norm(scaled) == pytest.approx(5 * calibrated_norm(CONFIG), rel=1e-6)


def test_it_is_computed_once_and_leaves_random_numbers_alone() -> None:
    calibrated_norm(CONFIG)
    before, drawn = calibration._calibrated.cache_info().misses, torch.random.get_rng_state()
    calibrated_norm(FederationConfig(executor="vectorized", epsilon=3.0))
    assert calibration._calibrated.cache_info().misses == before
    assert torch.equal(drawn, torch.random.get_rng_state())


def test_what_cannot_be_calibrated_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="method 'local-only' uploads nothing"):
        calibrated_norm(FederationConfig(method="local-only", epsilon=float("inf")))
