"""Augmentation, normalisation and dropout in whole rounds: equal by every executor, and against a plain loop."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from fl_core.base.counters import mixed, stream_words
from fl_core.base.errors import InputError
from fl_core.data.augmentation import augment, parse_augmentation
from fl_core.data.clients import client_index
from fl_core.data.datasets import load_dataset
from fl_core.models.build import build_model
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from tests.fl_core.plain import positions_of

torch.set_num_threads(1)
RANDOM = {"augmentation": "flip,crop(2),rotate(15)", "input_normalization": "0.3/0.4"}


def settings(**changes) -> FederationConfig:
    base = FederationConfig(
        method="fedavg", epsilon=float("inf"), clients=5, rounds=3, partition="dirichlet(0.5)", learning_rate=0.05
    )
    return dataclasses.replace(base, **(RANDOM | changes))


def played(config: FederationConfig, seeds=(0,), rounds: int = 2) -> Federation:
    federation = Federation(config, runs=len(seeds))
    federation.start(range(len(seeds)), [RunSettings(seed=seed) for seed in seeds])
    for _ in range(rounds):
        federation.run_round(RoundPlan.constant(len(seeds), 0.7))
    return federation


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert float((found - expected).norm() / expected.norm()) < tolerance


CASES = [
    {"model": "feddpa-femnist"},
    {"model": "feddpa-svhn", "local_epochs": 0.3, "sampling_rate": 0.6},
    {"model": "mlp", "method": "pfedsd"},
]


@pytest.mark.parametrize("changes", CASES)
def test_executors_agree_and_a_row_of_a_batch_equals_the_run_alone(changes):
    runs = {kind: played(settings(executor=kind, **changes), (0, 4)) for kind in ("vectorized", "sequential")}
    assert_near(runs["vectorized"].server, runs["sequential"].server)
    alone = played(settings(executor="sequential", **changes), (4,))
    assert_near(runs["sequential"].server[1], alone.server[0], 1e-6)


def test_chunks_change_nothing():
    changes = {"model": "feddpa-femnist", "executor": "vectorized"}
    assert_near(played(settings(memory_limit_mib=1, **changes)).server, played(settings(**changes)).server, 1e-5)


@pytest.mark.parametrize("model", ["feddpa-femnist", "mlp"])
def test_a_round_equals_a_plain_loop(model):
    config = settings(model=model, executor="vectorized")
    federation = played(config, (3,), rounds=1)
    data, network = load_dataset("digits"), build_model(model, (1, 8, 8), 10)
    index = client_index(data.train_labels, config.clients, config.partition, 3, test_fraction=config.test_fraction)
    start, total = network.initial(3), torch.zeros(network.size)
    black = torch.tensor([(0 - 0.3) / 0.4])
    for client in range(config.clients):
        word = mixed(torch.tensor(stream_words(3, "augmentation", "minibatch", 0)), client)
        words = mixed(mixed(word, 0), torch.arange(config.local_steps * config.batch_size))
        samples = index.train.of(client)
        positions = positions_of(3, "minibatch", 0, client, len(samples), config.local_steps, config.batch_size)
        vector = start.clone().requires_grad_()
        for step in range(config.local_steps):
            rows, own = samples[positions[step]], words.view(config.local_steps, -1)[step]
            images = (data.train_images[rows].float() / 16 - 0.3) / 0.4
            images = augment(images, own, parse_augmentation(config.augmentation), black)
            dropped = network.unit_factors(own, 0) if network.dropouts else None
            loss = functional.cross_entropy(network.logits(vector, images, dropped), data.train_labels[rows])
            (gradient,) = torch.autograd.grad(loss, vector)
            vector = (vector - config.learning_rate * gradient).detach().requires_grad_()
        total += vector.detach() - start
    assert_near(federation.server[0] - start, total / config.clients)


def test_each_round_client_and_pass_draws_anew_and_options_that_are_off_draw_nothing():
    plain = settings(augmentation="", input_normalization="none")
    federation = Federation(plain)
    run, client = torch.zeros(5, dtype=torch.int64), torch.arange(5)
    start = federation.server.expand(5, -1)
    phases = federation.recipe.objective.phases
    assert federation.local_work(phases, "minibatch", np.array([0]), run, client, start, {}).keys == ()
    changed = Federation(settings())
    works = [
        changed.local_work(phases, stream, np.array([done]), run, client, start, {}).keys[0]
        for stream, done in (("minibatch", 0), ("minibatch", 1), ("evaluation", 0))
    ]
    everything = torch.stack(works).flatten()
    assert len(everything.unique()) > 0.99 * len(everything)


def test_units_stay_where_the_method_leaves_dropout_out():
    changes = {"model": "feddpa-femnist", "augmentation": "", "input_normalization": "none"}
    dropping, whole = played(settings(**changes)), played(settings(set="dropout=false", **changes))
    assert not torch.allclose(dropping.server, whole.server, atol=1e-3)
    assert Federation(settings(set="dropout=false", **changes)).recipe.objective.dropout is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augmentation": "crop(8)"}, "below 8"),
        ({"augmentation": "mirror"}, "augmentation"),
        ({"input_normalization": "published"}, "dataset 'digits' has no published constants"),
        ({"input_normalization": "0.5,0.5/1"}, "1 channel(s)"),
        ({"input_normalization": "half"}, "public constants"),
        ({"augmentation": 3}, "must be text"),
    ],
)
def test_bad_input_is_refused_before_work(changes, words):
    with pytest.raises(InputError) as error:
        Federation(settings(**changes))
    assert words in str(error.value)


@pytest.mark.parametrize("placement", ["central", "distributed"])
def test_a_client_moves_the_sum_by_no_more_than_the_clip_norm_whatever_is_random(placement):
    config = settings(method="dp-fedavg", epsilon=1e6, model="feddpa-femnist", learning_rate=5.0, placement=placement)
    federation = Federation(config)
    report = federation.run_round(RoundPlan.constant(1, 0.1))
    assert report.figures["clipped_share"][0] == 1.0
    assert float(federation.last_release.norm()) <= config.clients * 0.1 * 1.001 + 0.1
