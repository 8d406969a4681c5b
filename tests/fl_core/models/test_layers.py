"""Layers against PyTorch's own."""

import pytest
import torch
from torch import nn

from fl_core.models.layers import (
    BatchLastConvolution,
    Dense,
    MaxPool,
    RowConvolution,
    for_cpu,
)

LAYOUTS = {"contiguous": (0, 1, 2, 3), "channels-last": (0, 2, 3, 1), "batch-last": (1, 2, 3, 0)}


def laid_out(images, layout):
    """Copy images into a layout, the dimensions in the order of memory."""
    order = LAYOUTS[layout]
    return images.permute(order).contiguous().permute([order.index(dimension) for dimension in range(4)])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(6, 8), (7, 5)])
@pytest.mark.parametrize("levels", [2, 1000])
def test_pooling_and_its_gradients_equal_pytorch_also_at_ties(layout, size, levels):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, levels, (2, 3, *size), generator=generator).double()
    images = laid_out(images, layout).requires_grad_()
    ours, theirs = MaxPool(layout == "batch-last")(images), nn.MaxPool2d(2)(images)
    assert torch.equal(ours, theirs)
    kept = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    assert ours.is_contiguous(memory_format=kept)
    direction = torch.randn(theirs.shape, generator=generator, dtype=torch.double)
    results = []
    for value in (ours, theirs):
        (first,) = torch.autograd.grad((value.sin() * direction).sum(), images, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), images)
        results.append((first, second))
    torch.testing.assert_close(*results, atol=0, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stacked_pooling_and_its_gradient_equal_each_of_them(layout):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 2, 3, 6, 8, generator=generator)
    images = torch.stack([laid_out(one, layout) for one in images]).requires_grad_()
    expected = torch.stack([nn.functional.max_pool2d(one, 2) for one in images])
    found = torch.func.vmap(MaxPool(layout == "batch-last"))(images)
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad(output.sin().sum(), images) for output in (found, expected)]
    torch.testing.assert_close(*gradients, atol=0, rtol=0)


FORMS = {
    "rows": RowConvolution,
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


@pytest.mark.parametrize("outputs", [3, 20])
def test_a_dense_layer_and_its_gradients_equal_those_of_a_linear_one(outputs):
    torch.manual_seed(0)
    layer = Dense(7, outputs).double()
    inputs = torch.randn(5, 7, dtype=torch.double, requires_grad=True)
    leaves = (inputs, layer.weight, layer.bias)
    results = []
    for result in (layer(inputs), nn.functional.linear(inputs, layer.weight.T, layer.bias)):
        first = torch.autograd.grad(result.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(value.square().sum() for value in first), leaves)
        results.append((result, *first, *second))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("outputs", [3, 20])
def test_stacked_dense_layers_and_their_gradients_equal_each_of_them(outputs):
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 5, 7), (4, 7, outputs), (4, outputs))
    leaves = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    layer = Dense(7, outputs)

    def forward(inputs, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (inputs,))

    found = torch.func.vmap(forward)(*leaves)
    expected = torch.stack([row @ weight + bias for row, weight, bias in zip(*leaves, strict=True)])
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(output.sin().sum(), leaves) for output in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_a_dense_layer_starts_as_a_linear_one():
    torch.manual_seed(0)
    ours, theirs = Dense(64, 400), nn.Linear(64, 400)
    for value in (*ours.parameters(), *theirs.parameters()):
        assert 0.9 / 8 < value.abs().max() <= 1 / 8
    assert float(ours.weight.detach().std()) == pytest.approx(float(theirs.weight.detach().std()), rel=0.02)


def test_the_network_for_cpus_swaps_only_layers_that_it_can_do():
    network = nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Conv2d(4, 4, (1, 2)),
        nn.MaxPool2d(1),
        nn.Conv2d(4, 4, 1, groups=2),
    )
    swapped = for_cpu(network, (1, 20, 20))
    assert [type(layer) for layer in swapped] == [
        BatchLastConvolution,
        nn.ReLU,
        MaxPool,
        RowConvolution,
        BatchLastConvolution,
        nn.Conv2d,
        nn.MaxPool2d,
        nn.Conv2d,
    ]
    assert dict(swapped.named_parameters()).keys() == dict(network.named_parameters()).keys()
    assert swapped[3].weight is network[3].weight
    images = torch.rand(2, 1, 20, 20)
    torch.testing.assert_close(swapped(images), network(images))
    assert type(for_cpu(nn.Sequential(nn.Conv2d(3, 6, 5)), (3, 28, 28))[0]) is nn.Conv2d
