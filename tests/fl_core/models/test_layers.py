"""Layers against PyTorch's own."""

import pytest
import torch
from torch import nn

from fl_core.models.layers import (
    BatchLastConvolution,
    ChannelsLastMaxPool,
    Dense,
    RowConvolution,
    WindowConvolution,
    for_cpu,
    for_one_client,
)


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


FORMS = {
    "rows": RowConvolution,
    "windows": lambda convolution, width: WindowConvolution(convolution),
    "batch-last": lambda convolution, width: BatchLastConvolution(convolution),
}


@pytest.mark.parametrize(("form", "stride"), [*((form, 1) for form in FORMS), ("batch-last", 2), ("batch-last", 3)])
@pytest.mark.parametrize(("kernel", "margin"), [(3, 1), (5, 2), (3, 0), (2, 1), (1, 0)])
@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
def test_convolutions_and_their_gradients_equal_pytorch(form, stride, kernel, margin, size):
    torch.manual_seed(0)
    theirs = nn.Conv2d(2, 3, kernel, stride, padding=margin).double()
    ours = FORMS[form](theirs, size[1]).double()
    images = torch.randn(4, 2, *size, dtype=torch.double, requires_grad=True)
    leaves = (images, theirs.weight, theirs.bias)
    direction = torch.randn(theirs(images).shape, dtype=torch.double)
    results = []
    for layer in (ours, theirs):
        output = layer(images)
        first = torch.autograd.grad((output.sin() * direction).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(value.square().sum() for value in first), leaves)
        results.append((output, *first, *second))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("form", "stride"), [*((form, 1) for form in FORMS), ("batch-last", 2)])
def test_stacked_convolutions_and_their_gradients_equal_each_of_them(form, stride):
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 8, 3, stride, padding=1)
    layer = FORMS[form](convolution, 8)
    weights, images = torch.randn(3, 8, 2, 3, 3), torch.randn(3, 4, 2, 8, 8)
    leaves = weights.requires_grad_(), images.requires_grad_()

    def forward(weight, batch):
        return torch.func.functional_call(layer, {"weight": weight}, (batch,))

    found = torch.func.vmap(forward)(*leaves)
    expected = torch.stack(
        [
            nn.functional.conv2d(batch, weight, convolution.bias, stride, padding=1)
            for weight, batch in zip(*leaves, strict=True)
        ]
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(output.sin().sum(), leaves) for output in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


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
    assert float(ours.weight.detach().std()) == pytest.approx(float(theirs.weight.detach().std()), rel=0.02)


def test_the_network_for_one_client_shares_parameters_under_the_same_names():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.MaxPool2d(3), nn.Flatten(), Dense(2, 2))
    alone = for_one_client(network)
    assert dict(alone.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert alone[0].weight is network[0].weight
    assert isinstance(alone[1], ChannelsLastMaxPool)
    assert isinstance(alone[2], nn.MaxPool2d)


def test_the_network_for_cpus_swaps_only_convolutions_that_it_can_do():
    network = nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Conv2d(4, 4, (1, 2)),
        nn.Conv2d(4, 4, 1, groups=2),
    )
    swapped = for_cpu(network, (1, 20, 20))
    assert [type(layer) for layer in swapped] == [
        WindowConvolution,
        nn.MaxPool2d,
        RowConvolution,
        BatchLastConvolution,
        nn.Conv2d,
        nn.Conv2d,
    ]
    assert dict(swapped.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert swapped[2].weight is network[2].weight
    images = torch.rand(2, 1, 20, 20)
    torch.testing.assert_close(swapped(images), network(images))
    assert type(for_cpu(nn.Sequential(nn.Conv2d(1, 6, 5)), (1, 28, 28))[0]) is nn.Conv2d
