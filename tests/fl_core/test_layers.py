"""Layers against PyTorch's own."""

import pytest
import torch
from torch import nn

from fl_core.layers import ChannelsLastMaxPool, Dense, for_one_client


@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
@pytest.mark.parametrize("levels", [2, 1000])
def test_pooling_and_its_gradient_equal_pytorch_also_at_ties(size, levels):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, levels, (2, 3, *size), generator=generator).double().requires_grad_()
    ours, theirs = ChannelsLastMaxPool()(images), nn.MaxPool2d(2)(images)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous()
    direction = torch.randn(theirs.shape, generator=generator, dtype=torch.double)
    found, expected = (torch.autograd.grad(value, images, direction)[0] for value in (ours, theirs))
    assert torch.equal(found, expected)


def test_a_dense_layer_equals_a_linear_one():
    torch.manual_seed(0)
    ours, theirs = Dense(7, 3), nn.Linear(7, 3)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.T)
        theirs.bias.copy_(ours.bias)
    inputs = torch.randn(5, 7)
    torch.testing.assert_close(ours(inputs), theirs(inputs))


def test_a_dense_layer_starts_as_a_linear_one():
    torch.manual_seed(0)
    ours, theirs = Dense(64, 400), nn.Linear(64, 400)
    for value in (*ours.parameters(), *theirs.parameters()):
        assert 0.9 / 8 < value.abs().max() <= 1 / 8
    assert ours.weight.detach().std() == pytest.approx(theirs.weight.detach().std(), rel=0.02)


def test_the_network_for_one_client_shares_parameters_under_the_same_names():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.MaxPool2d(3), nn.Flatten(), Dense(2, 2))
    alone = for_one_client(network)
    assert dict(alone.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert alone[0].weight is network[0].weight
    assert isinstance(alone[1], ChannelsLastMaxPool)
    assert isinstance(alone[2], nn.MaxPool2d)
