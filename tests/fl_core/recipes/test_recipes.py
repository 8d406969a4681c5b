"""Rounds of every recipe against a plain slow loop, and what personalization keeps where."""

import numpy as np
import pytest
import torch

from fl_core.models.build import build_model
from fl_core.recipes.catalog import METHODS as CATALOGUE
from fl_core.recipes.catalog import find_method
from fl_core.recipes.personalization import ClientView, Personalization
from fl_core.run.federation import Federation
from tests.fl_core.plain import BODY, HEAD, METHODS, RELEASING, PlainRun, config, plan, release_of

torch.set_num_threads(1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sampling_rate": 0.5, "placement": "local", "momentum": 0.5, "executor": "sequential"},
        {
            "sampling": "fixed",
            "sampling_rate": 0.5,
            "placement": "distributed",
            "optimizer": "adam",
            "learning_rate": 0.01,
        },
        {"sampling_rate": 0.5, "local_epochs": 0.7, "placement": "distributed"},
    ],
    ids=["full", "poisson-local-momentum", "fixed-adam", "poisson-epochs-distributed"],
)
def test_rounds_equal_a_plain_loop(method, changes):
    federation = Federation(config(method, **changes), runs=2)
    references = [PlainRun(federation.config, seed, federation.server[seed]) for seed in (0, 1)]
    for clip, rate in ((0.3, 1.0), (5.0, 0.5)):
        report = federation.run_round(plan(2, clip, rate), evaluate=True)
        for row, reference in enumerate(references):
            sigma = report.figures["noise_multiplier"][row] if "noise_multiplier" in report.figures else 0.0
            expected = reference.step(clip, rate, sigma)
            np.testing.assert_allclose(federation.server[row].numpy(), reference.server, atol=2e-5)
            if reference.own:
                local = np.stack([reference.local[client] for client in range(8)])
                np.testing.assert_allclose(federation.clients["local"][row].numpy(), local, atol=2e-5)
            else:
                assert not federation.clients
            for name in expected.keys() & report.figures.keys():
                assert report.figures[name][row] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
            for name, value in reference.test().items():
                assert report.figures[name][row] == pytest.approx(value, abs=0.02), name


def test_the_catalogue_is_what_the_tests_cover():
    assert set(METHODS) <= set(CATALOGUE)
    assert [name for name in METHODS if find_method(name).exchanges] == list(RELEASING)


def test_fedper_heads_stay_on_the_clients_and_the_servers_head_never_moves():
    federation = Federation(config("fedper"))
    initial = federation.server.clone()
    for _ in range(2):
        federation.run_round(plan())
        assert torch.equal(release_of(federation)[0, BODY:], torch.zeros(HEAD))
    assert torch.equal(federation.server[0, BODY:], initial[0, BODY:])
    assert (federation.server[0, :BODY] != initial[0, :BODY]).float().mean() > 0.99
    heads = federation.clients["local"][0]
    assert heads.shape == (8, HEAD)
    assert len({tuple(head.tolist()) for head in heads}) == 8


@pytest.mark.parametrize("method", ["local-only", "frozen-extractor"])
def test_controls_release_nothing_and_spend_nothing(method):
    federation = Federation(config(method))
    initial = federation.server.clone()
    report = federation.run_round(plan())
    assert torch.equal(federation.server, initial)
    assert not release_of(federation).any()
    assert federation.ledgers[0].charges == ()
    assert report.figures["epsilon_spent"] == 0
    assert report.figures["budget_left"] == 1
    assert not {"noise_multiplier", "clip_norm", "release_norm_ratio", "unclipped_share_noised"} & set(report.figures)


def test_the_frozen_extractor_stays_what_it_was_at_birth():
    federation = Federation(config("frozen-extractor"))
    initial = federation.server[0].clone()
    federation.run_round(plan())
    models = federation.clients["local"][0]
    assert torch.equal(models[:, :BODY], initial[:BODY].expand(8, -1))
    assert (models[:, BODY:] != initial[BODY:]).any(dim=1).all()


def test_testing_adapts_throw_away_copies_only():
    adapted, plain = Federation(config("dp-fedavg-fb")), Federation(config("dp-fedavg"))
    for _ in range(2):
        first, second = adapted.run_round(plan(), evaluate=True), plain.run_round(plan(), evaluate=False)
        before = adapted.server.clone()
        once, again = adapted.evaluate(), adapted.evaluate()
        assert torch.equal(adapted.server, before)
        assert once == again
        assert torch.equal(adapted.server, plain.server)
        assert not adapted.clients
    figures = plain.evaluate()
    assert first.figures["global_accuracy"] == figures["global_accuracy"]
    assert first.figures["personal_loss"] < figures["personal_loss"]
    assert first.figures["epsilon_spent"] == second.figures["epsilon_spent"]


@pytest.mark.parametrize("local", ["none", "head", "body", "all"])
def test_a_model_is_put_together_from_the_servers_part_and_the_clients(local):
    model = build_model("mlp", (1, 8, 8), 10)
    part = Personalization(local=local)
    server, client = torch.arange(model.size).float(), -torch.arange(model.size).float() - 1
    own = {"none": slice(0, 0), "head": slice(BODY, None), "body": slice(0, BODY), "all": slice(None)}[local]
    expected = server.clone()
    expected[own] = client[own]
    stacked = server.expand(3, -1)

    def begin(state):
        return part.begin(ClientView(model, stacked, state, {}, {}, lambda models: models))

    fresh = {name: value.expand(3, -1) for name, value in part.initial_state(model, server).items()}
    start = begin(fresh)
    assert torch.equal(start.vector, stacked)
    state = part.end(model, client.expand(3, -1), start)
    assert set(state) == set(fresh) == (set() if local == "none" else {"local"})
    again = begin(state)
    for composed in (again.vector, again.reference, part.tested(model, stacked, state)):
        assert torch.equal(composed, expected.expand(3, -1))
    mask = torch.ones(model.size)
    mask[own] = 0
    for shared in (again.shared, part.static_mask(model, torch.device("cpu"))):
        assert torch.equal(torch.ones(model.size) if shared is None else shared, mask)
    assert part.shares_nothing == (local == "all")


def test_batchnorm_is_nowhere_in_the_models():
    """Batch statistics of a client would reach the server unclipped."""
    for name in ("mlp", "cnn2-groupnorm", "cnn3-groupnorm"):
        network = build_model(name, (1, 32, 32), 10).make_module()
        assert not list(network.buffers())
