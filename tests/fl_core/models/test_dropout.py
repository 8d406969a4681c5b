"""FedDPA's networks and dropout by the seed, against the same networks written with torch's own layers."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from fl_core.base.counters import mixed
from fl_core.models.build import build_model
from fl_core.models.catalog import register_model
from fl_core.models.dropout import Dropout


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("feddpa-svhn", (3, 32, 32), 10, 1_626_442),
        ("feddpa-femnist", (1, 28, 28), 62, 1_206_590),
        ("feddpa-cifar10", (3, 32, 32), 10, 343_946),
    ],
)
def test_feddpas_networks_have_the_parameters_that_they_are_known_for(name, shape, classes, size):
    model = build_model(name, shape, classes)
    assert model.size == size
    units = [9216, 128] if name == "feddpa-femnist" else [64 * 14 * 14, 128]
    assert [one.shape.numel() for one in model.dropouts] == ([] if name == "feddpa-cifar10" else units)


def by_hand(model, flat, images, factors, relus):
    """The forward pass of FedDPA's networks for SVHN and FEMNIST with the factors of both dropouts."""
    values = {name: one.detach() for name, one in model.unflatten(flat).items()}
    hidden = functional.conv2d(images, values["conv1.weight"], values["conv1.bias"])
    hidden = hidden.relu() if relus else hidden
    hidden = functional.conv2d(hidden, values["conv2.weight"], values["conv2.bias"]).relu()
    hidden = functional.max_pool2d(hidden, 2)
    units = hidden[0].numel()
    hidden = hidden.flatten(1) * factors[:, :units]
    hidden = hidden @ values["fc1.weight"] + values["fc1.bias"]
    hidden = (hidden.relu() if relus else hidden) * factors[:, units:]
    return hidden @ values["fc2.weight"] + values["fc2.bias"]


@pytest.mark.parametrize(("name", "shape"), [("feddpa-svhn", (3, 12, 12)), ("feddpa-femnist", (1, 12, 12))])
def test_every_form_of_a_network_drops_the_units_that_it_is_told(name, shape):
    model = build_model(name, shape, 5)
    flat, images = torch.stack([model.initial(0), model.initial(1)]), torch.rand(2, 4, *shape)
    factors = model.unit_factors(mixed(torch.arange(8).view(2, 4), 9), 0)
    stacked = vmap(model.logits)(flat, images, factors)
    for row in range(2):
        expected = by_hand(model, flat[row], images[row], factors[row], name == "feddpa-svhn")
        torch.testing.assert_close(stacked[row], expected, atol=1e-5, rtol=1e-4)
        alone = model.logits_alone(flat[row], images[row], factors[row])
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-4)
    ones = torch.ones_like(factors)
    torch.testing.assert_close(vmap(model.logits)(flat, images), vmap(model.logits)(flat, images, ones))


def test_units_are_dropped_with_their_layers_probability_and_the_rest_is_scaled():
    model = build_model("feddpa-svhn", (3, 12, 12), 5)
    words = mixed(torch.arange(300), 2)
    factors = model.unit_factors(words, 0)
    units = model.dropouts[0].shape.numel()
    for part, probability in ((factors[:, :units], 0.25), (factors[:, units:], 0.5)):
        assert part.unique().tolist() == pytest.approx([0, 1 / (1 - probability)])
        assert float((part == 0).double().mean()) == pytest.approx(probability, abs=0.005)
        assert float(part.mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(factors, model.unit_factors(words, 0))
    other = model.unit_factors(words, 1)
    assert float((factors == other)[:, units:].double().mean()) == pytest.approx(0.5, abs=0.01)
    assert float((factors[1:] == factors[:-1])[:, units:].double().mean()) == pytest.approx(0.5, abs=0.01)


def test_a_users_network_may_have_dropout_of_this_package():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(64, 6), Dropout(0.5), nn.Linear(6, 10)

        def forward(self, images):
            return self.last(self.drop(self.first(images.flatten(1)).relu()))

    register_model("small-with-dropout", Small)
    model = build_model("small-with-dropout", (1, 8, 8), 10)
    (one,) = model.dropouts
    assert (one.name, one.probability, tuple(one.shape)) == ("drop", 0.5, (6,))
    flat, images = model.initial(0), torch.rand(3, 1, 8, 8)
    nothing = model.logits(flat, images, torch.zeros(3, 6))
    torch.testing.assert_close(nothing, flat[-10:].expand(3, 10))
