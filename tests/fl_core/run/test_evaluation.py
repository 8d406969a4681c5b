"""Accuracy and loss against plain loops over clients and images."""

import math

import numpy as np
import pytest
import torch

from fl_core.data.clients import client_index
from fl_core.data.datasets import load_dataset
from fl_core.models.build import build_model
from fl_core.run.evaluation import Evaluation, sampling_error, trimmed_mean
from fl_core.run.federation import Federation
from fl_core.run.local_data import ClientTables
from fl_core.training.executors import Executor
from tests.fl_core.plain import config, module, plan

torch.set_num_threads(1)
ALL = torch.arange(6).unsqueeze(0)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def tables(digits):
    indices = [client_index(digits.train_labels, 6, spec, 3) for spec in ("dirichlet(0.2)", "iid")]
    return ClientTables(indices, torch.device("cpu"))


def models(count: int) -> torch.Tensor:
    """Models that are a little better than chance, each in its own way."""
    model = build_model("mlp", (1, 8, 8), 10)
    return torch.stack([model.initial(seed) * 2 for seed in range(count)])


def plain_scores(model: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Accuracy and cross-entropy, image by image, in NumPy."""
    with torch.no_grad():
        logits = module(model.double().numpy())(images.float() / 16).double().numpy()
    hits, losses = [], []
    for row, label in zip(logits, labels.tolist(), strict=True):
        hits.append(row.argmax() == label)
        losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[label])
    return float(np.mean(hits)), float(np.mean(losses))


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
@pytest.mark.parametrize("samples", [0, 50, 10_000])
def test_pooled_figures_equal_a_plain_loop(digits, kind, samples):
    evaluation = Evaluation(Executor(build_model("mlp", (1, 8, 8), 10), kind), digits, samples)
    chosen = torch.arange(len(digits.test_labels))
    if samples == 50:
        chosen = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:50]
    figures = evaluation.pooled(models(3))
    for row, model in enumerate(models(3)):
        accuracy, loss = plain_scores(model, digits.test_images[chosen], digits.test_labels[chosen])
        assert float(figures["global_accuracy"][row]) == pytest.approx(accuracy, abs=1e-6)
        assert float(figures["global_loss"][row]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
@pytest.mark.parametrize("own", [True, False], ids=["own-models", "one-model"])
def test_personal_figures_equal_a_plain_loop_over_clients_of_unequal_sizes(digits, tables, kind, own):
    evaluation = Evaluation(Executor(build_model("mlp", (1, 8, 8), 10), kind), digits, 0)
    given = models(12).view(2, 6, -1) if own else models(2)
    figures = evaluation.personal(given, tables, ALL.expand(2, -1))
    for run in range(2):
        scores = []
        for client in range(6):
            rows = tables.test.of(run, client)
            model = given[run, client] if own else given[run]
            scores.append(plain_scores(model, digits.train_images[rows], digits.train_labels[rows]))
        accuracy, loss = np.array(scores).T
        expected = {
            "personal_accuracy": accuracy.mean(),
            "personal_accuracy_error": 0.0,
            "personal_accuracy_spread": accuracy.std(),
            "personal_loss": loss.mean(),
            "personal_loss_spread": loss.std(),
            "trimmed_accuracy": np.sort(accuracy)[0:4].mean(),
            "trimmed_loss": np.sort(loss)[0:4].mean(),
        }
        assert set(expected) == set(figures)
        for name, value in expected.items():
            assert float(figures[name][run]) == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
@pytest.mark.parametrize("own", [True, False], ids=["own-models", "one-model"])
@pytest.mark.parametrize("samples", [0, 12])
@pytest.mark.parametrize("mode", ["classes", "whole"])
def test_figures_on_the_pooled_images_equal_a_plain_loop_over_clients(digits, tables, kind, own, samples, mode):
    """`classes`: the test images of the classes that the client trains on; all of them where the subset has none."""
    evaluation = Evaluation(Executor(build_model("mlp", (1, 8, 8), 10), kind), digits, samples, mode)
    chosen = torch.arange(len(digits.test_labels))
    if samples:
        chosen = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))[:samples]
    images, labels = digits.test_images[chosen], digits.test_labels[chosen]
    given = models(12).view(2, 6, -1) if own else models(2)
    figures = evaluation.personal(given, tables, ALL.expand(2, -1))
    for run in range(2):
        scores = []
        for client in range(6):
            owned = set(digits.train_labels[tables.train.of(run, client)].tolist())
            rows = [row for row, label in enumerate(labels.tolist()) if mode == "whole" or label in owned]
            rows = rows or list(range(len(labels)))
            scores.append(plain_scores(given[run, client] if own else given[run], images[rows], labels[rows]))
        accuracy, loss = np.array(scores).T
        assert float(figures["personal_accuracy"][run]) == pytest.approx(accuracy.mean(), abs=1e-6)
        assert float(figures["personal_accuracy_spread"][run]) == pytest.approx(accuracy.std(), abs=1e-6)
        assert float(figures["personal_loss"][run]) == pytest.approx(loss.mean(), rel=1e-4)


def test_clients_of_this_test_lack_classes(digits, tables):
    held = [len(set(digits.train_labels[tables.train.of(0, client)].tolist())) for client in range(6)]
    assert min(held) < 10
    labels = torch.randperm(len(digits.test_labels), generator=torch.Generator().manual_seed(0))[:12]
    assert len(set(digits.test_labels[labels].tolist())) < 10


def test_a_federation_is_tested_as_configured_or_as_asked():
    plain, classes = (Federation(config("fedper", evaluation=mode)) for mode in ("holdout", "classes"))
    for federation in (plain, classes):
        federation.run_round(plan())
    configured = classes.evaluate()
    assert configured == plain.evaluate("classes")
    assert configured["personal_loss"] != plain.evaluate()["personal_loss"]
    assert configured["personal_loss"] != plain.evaluate("whole")["personal_loss"]
    assert configured["global_loss"] == plain.evaluate()["global_loss"]


def test_every_client_counts_alike_whatever_its_size(digits):
    """The mean over clients, not over samples: a client of two samples weighs as much as one of hundreds."""
    tables = ClientTables([client_index(digits.train_labels, 6, "dirichlet(0.1)", 1)], torch.device("cpu"))
    sizes = tables.test.count[0]
    assert sizes.max() >= 5 * sizes.min()
    evaluation = Evaluation(Executor(build_model("mlp", (1, 8, 8), 10), "vectorized"), digits, 0)
    # One label is right everywhere for a model whose last bias says so.
    constant = torch.zeros(1, 2410)
    constant[0, -10] = 50.0
    accuracies = []
    for client in range(6):
        labels = digits.train_labels[tables.test.of(0, client)]
        accuracies.append(float((labels == 0).double().mean()))
    figures = evaluation.personal(constant, tables, ALL)
    assert float(figures["personal_accuracy"]) == pytest.approx(np.mean(accuracies), abs=1e-6)


def test_trimmed_means_drop_the_lowest_tenth_and_the_highest_fifth():
    values = np.random.default_rng(0).normal(size=(3, 40))
    expected = np.sort(values, axis=1)[:, 4:32].mean(axis=1)
    assert trimmed_mean(torch.from_numpy(values)).numpy() == pytest.approx(expected)

    for clients in (1, 2, 3, 9, 10, 11, 50):
        few = torch.arange(float(clients)).flip(0).unsqueeze(0)
        kept = np.arange(clients)[clients // 10 : max(1, clients * 8 // 10)]
        assert float(trimmed_mean(few)) == pytest.approx(kept.mean())


def test_broken_models_are_scored_without_an_exception(digits, tables):
    evaluation = Evaluation(Executor(build_model("mlp", (1, 8, 8), 10), "vectorized"), digits, 0)
    figures = evaluation.pooled(torch.full((2, 2410), torch.nan)) | evaluation.personal(
        torch.full((2, 2410), torch.nan), tables, ALL.expand(2, -1)
    )
    for name, value in figures.items():
        assert ("accuracy" in name) == bool(torch.isfinite(value).all()), name


def test_a_sample_of_the_clients_is_tested_with_the_error_of_its_mean():
    """The same clients all along; the error covers the mean over all clients as often as a standard error should."""
    made = {"method": "local-only", "clients": 60, "partition": "dirichlet(0.3)", "delta": 1e-3}
    whole = Federation(config(**made), runs=12)
    some = Federation(config(**made, evaluation_clients=20), runs=12)
    for federation in (whole, some):
        federation.run_round(plan(12))
    truth, found = whole.evaluate(), some.evaluate()
    assert (truth["personal_accuracy_error"] == 0).all()
    error = found["personal_accuracy_error"]
    spread = truth["personal_accuracy_spread"] * math.sqrt(60 / 59 * (1 - 20 / 60) / 20)
    assert error == pytest.approx(spread, rel=0.5)
    deviations = (found["personal_accuracy"] - truth["personal_accuracy"]) / error
    assert 0.4 < np.sqrt((deviations**2).mean()) < 1.7
    assert (found["global_accuracy"] == truth["global_accuracy"]).all()
    again = some.evaluate()
    assert all(np.array_equal(again[name], value) for name, value in found.items())


def test_the_error_of_a_sample_is_that_of_a_mean_drawn_without_replacement():
    """Cochran's Sampling Techniques (1977), eq. 2.20."""
    values = torch.tensor([[0.1, 0.5, 0.9, 0.4]], dtype=torch.float64)
    expected = np.std([0.1, 0.5, 0.9, 0.4], ddof=1) / 2 * math.sqrt(1 - 4 / 10)
    assert sampling_error(values, 10).tolist() == pytest.approx([expected])
    assert sampling_error(values, 4).tolist() == [0]
