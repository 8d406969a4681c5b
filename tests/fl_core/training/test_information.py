"""Fisher information against a loop over samples, the Jacobian risk against the Jacobian itself."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, jacrev
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fl_core.base.errors import InputError
from fl_core.data.datasets import load_dataset
from fl_core.models.build import build_model
from fl_core.run.federation import Federation
from fl_core.training.images import Images
from fl_core.training.information import FISHER_BATCH, first_order_risk, fisher_information, jacobian_risk
from tests.fl_core.plain import config, plan

torch.set_num_threads(1)
SHAPE = (1, 8, 8)


def picture_set(count: int, shape=SHAPE) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 17, (count, *shape), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 10, (count,), generator=generator)


def sharpened(model, seed: int) -> torch.Tensor:
    """Initial parameters, some of them larger, so that samples disagree."""
    vector = model.initial(seed)
    return vector + 0.1 * torch.randn(vector.shape, generator=torch.Generator().manual_seed(seed + 50))


def plain_fisher(model, vector, images, labels) -> np.ndarray:
    """Mean over samples of the squared gradient of log p(y|x), one backward pass for each."""
    network = model.make_module().double()
    vector_to_parameters(vector.double(), network.parameters())
    total = np.zeros(model.size)
    for image, label in zip(images, labels, strict=True):
        network.zero_grad()
        logits = network(image.double()[None] / 16)
        torch.log_softmax(logits, -1)[0, label].backward()
        gradient = parameters_to_vector([value.grad for value in network.parameters()])
        total += gradient.numpy() ** 2
    return total / len(images)


MODELS = ["mlp", "cnn2", "cnn2-groupnorm", "cnn2-strided"]


@pytest.mark.parametrize("name", MODELS)
def test_fisher_information_is_a_mean_over_samples_of_clients_of_different_sizes(name):
    """Padding entries point at other samples, and must not count."""
    model = build_model(name, SHAPE, 10)
    images, labels = picture_set(60)
    sizes = [1, 4, 9]
    index = torch.randint(0, 60, (len(sizes), max(sizes)), generator=torch.Generator().manual_seed(1))
    parameters = torch.stack([sharpened(model, seed) for seed in range(len(sizes))])
    found = fisher_information(model, parameters, index, torch.tensor(sizes), Images(images, labels, 16), 2**30)
    for row, count in enumerate(sizes):
        own = index[row, :count]
        expected = plain_fisher(model, parameters[row], images[own], labels[own])
        np.testing.assert_allclose(found[row].numpy(), expected, rtol=2e-3, atol=1e-6 * expected.max())
    batched = plain_fisher(model, parameters[1], images[index[1]][:1], labels[index[1]][:1])
    assert np.abs(found[1].numpy() - batched).max() > 0.1 * batched.max()  # and not only of the first


def test_samples_beyond_one_stack_of_gradients_and_rows_beyond_the_memory_count_alike():
    model = build_model("mlp", SHAPE, 10)
    images, labels = picture_set(200)
    sizes = torch.tensor([2 * FISHER_BATCH + 7, 3, FISHER_BATCH, FISHER_BATCH + 1, 20])
    index = torch.randint(0, 200, (5, int(sizes.max())), generator=torch.Generator().manual_seed(2))
    parameters = torch.stack([sharpened(model, seed) for seed in range(5)])
    data = Images(images, labels, 16)
    whole = fisher_information(model, parameters, index, sizes, data, 2**30)
    few = fisher_information(model, parameters, index, sizes, data, 1)
    torch.testing.assert_close(whole, few, rtol=1e-4, atol=1e-9)
    for row in (0, 1, 3):
        own = index[row, : sizes[row]]
        expected = plain_fisher(model, parameters[row], images[own], labels[own])
        np.testing.assert_allclose(whole[row].numpy(), expected, rtol=2e-3, atol=1e-6 * expected.max())


def test_the_information_of_a_client_does_not_depend_on_its_padding():
    model = build_model("mlp", SHAPE, 10)
    images, labels = picture_set(90)
    data, counts = Images(images, labels, 16), torch.tensor([5, 80])
    index = torch.randint(0, 90, (2, 80), generator=torch.Generator().manual_seed(2))
    other = index.clone()
    other[0, 5:] = (other[0, 5:] + 17) % 90
    parameters = torch.stack([sharpened(model, 0)] * 2)
    first, second = (fisher_information(model, parameters, one, counts, data, 2**30) for one in (index, other))
    assert torch.equal(first, second)


def exact_risk(model, vector, inputs, labels) -> float:
    """‖∂/∂x[∂ℓ/∂θ]‖_F from the whole matrix, pixels by parameters (ADP-PFL eq. 7-8)."""

    def loss(parameters, pixels):
        return nn.functional.cross_entropy(model.logits(parameters, pixels), labels)

    jacobian = jacrev(grad(loss, argnums=1), argnums=0)(vector.double(), inputs.double())
    assert jacobian.numel() == model.size * inputs.numel()
    return float(jacobian.norm())


def test_the_risk_is_the_norm_of_the_jacobian():
    """With unit probes of length √size the estimator has no variance; with random signs little."""
    model = build_model("mlp", SHAPE, 10)
    images, labels = picture_set(4)
    inputs, truth = images.float().view(2, 2, *SHAPE) / 16, labels.view(2, 2)
    parameters = torch.stack([sharpened(model, 0), 2 * sharpened(model, 1)])
    expected = [exact_risk(model, parameters[row], inputs[row], truth[row]) for row in range(2)]
    units = torch.eye(model.size) * model.size**0.5
    assert jacobian_risk(model, parameters, inputs, truth, units).tolist() == pytest.approx(expected, rel=1e-4)
    signs = torch.randint(0, 2, (400, model.size), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    assert jacobian_risk(model, parameters, inputs, truth, signs).tolist() == pytest.approx(expected, rel=0.06)
    few = jacobian_risk(model, parameters, inputs, truth, signs[:4])
    assert few.tolist() == pytest.approx(expected, rel=0.4)  # what a run uses ranks clients this far apart
    assert expected[0] != pytest.approx(expected[1], rel=0.5)


def test_the_first_order_risk_is_the_mean_norm_of_the_logits_gradients_by_the_samples():
    model = build_model("mlp-small", SHAPE, 10)
    images, _ = picture_set(6)
    inputs = images.float().view(2, 3, *SHAPE) / 16
    parameters = torch.stack([sharpened(model, 0), 2 * sharpened(model, 1)])
    expected = []
    for vector, own in zip(parameters, inputs, strict=True):
        norms = []
        for image in own:
            jacobian = torch.autograd.functional.jacobian(lambda x, v=vector: model.logits(v, x[None])[0], image)
            norms += jacobian.flatten(1).norm(dim=-1).tolist()
        expected.append(sum(norms) / len(norms))
    assert first_order_risk(model, parameters, inputs).tolist() == pytest.approx(expected, rel=1e-5)
    assert expected[1] > 2 * expected[0]


def test_a_run_measures_the_risk_of_the_order_that_is_asked_for():
    kept = []
    for order in (1, 2):
        federation = Federation(config("adp-pfl", set=f"risk_order={order}"))
        federation.run_round(plan())
        kept.append(federation.clients["risk"][0])
    assert (kept[0] > 0).all()
    assert (kept[0] != kept[1]).all()
    with pytest.raises(InputError, match=r"mechanism\.risk_order is 3, but it must be"):
        config("adp-pfl", set="risk_order=3")


def test_a_part_of_the_samples_is_spread_evenly_over_each_client():
    """A client's list is sorted by class; one with fewer samples gives all of them."""
    federation = Federation(config("feddpa", partition="dirichlet(0.1)"))
    tables, clients = federation.tables, torch.arange(8)
    counts = tables.train.count[0]
    wanted = 60
    assert counts.min() < wanted < counts.max() / 2
    models = torch.stack([sharpened(federation.model, seed) for seed in range(8)])
    found = federation.fisher(models, torch.zeros(8, dtype=torch.int64), clients, wanted)
    data = load_dataset("digits")
    for client, count in enumerate(counts.tolist()):
        taken = min(count, wanted)
        rows = tables.train.of(0, client)[[place * count // taken for place in range(taken)]]
        assert len(set(rows.tolist())) == taken
        expected = plain_fisher(federation.model, models[client], data.train_images[rows], data.train_labels[rows])
        np.testing.assert_allclose(found[client].numpy(), expected, rtol=2e-3, atol=1e-6 * expected.max())
