from itertools import pairwise

import pytest
import torch
from torch.func import vmap
from torch.nn.functional import conv2d, cross_entropy, group_norm

from fl_core.base.errors import InputError
from fl_core.models.build import build_model
from fl_core.models.catalog import MODELS
from fl_core.models.tracing import trace


@pytest.mark.parametrize("name", [*MODELS, "cnn2-groupnorm", "cnn3-groupnorm"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_logits_equal_the_module_loaded_with_the_same_vector(name, shape):
    if name == "lenet" and shape[1] < 28:
        pytest.skip("too small for this model")
    model = build_model(name, shape, 7)
    flat, images = model.initial(3), torch.rand(4, *shape)
    module = model.make_module()
    torch.nn.utils.vector_to_parameters(flat, module.parameters())
    torch.testing.assert_close(model.logits(flat, images), module(images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.logits_alone(flat, images), module(images), atol=1e-5, rtol=1e-5)


def test_layers_tile_the_vector_in_order_and_the_head_is_last():
    model = build_model("cnn2", (1, 8, 8), 10)
    assert [layer.name for layer in model.layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert model.layers[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(model.layers))
    assert model.head.stop == model.size
    assert model.head.name == "fc2"
    assert model.head.stop - model.head.start == 32 * 10 + 10
    assert (model.body.start, model.body.stop) == (0, model.head.start)


def test_tensors_are_the_parameters_of_the_module_in_order():
    model = build_model("cnn2-groupnorm", (1, 8, 8), 10)
    parameters = list(model.make_module().named_parameters())
    assert [tensor.name for tensor in model.tensors] == [name for name, _ in parameters]
    assert [tensor.stop - tensor.start for tensor in model.tensors] == [value.numel() for _, value in parameters]
    assert [tensor.start for tensor in model.tensors] == [0, *(tensor.stop for tensor in model.tensors[:-1])]
    assert model.tensors[-1].stop == model.size


def test_convolutions_are_the_convolutional_layers_without_norms():
    model = build_model("cnn2-groupnorm", (1, 8, 8), 10)
    assert [layer.name for layer in model.layers] == ["conv1", "conv1_norm", "conv2", "conv2_norm", "fc1", "fc2"]
    assert model.convolutions == (model.layers[0], model.layers[2])
    assert model.convolutions[1].stop - model.convolutions[1].start == 8 * 16 * 9 + 16
    assert build_model("mlp", (1, 8, 8), 10).convolutions == ()


def test_the_strided_cnn_has_the_parameters_of_its_two_convolutions_and_two_dense_layers():
    kernels = 8 * 25 + 8 + 16 * 8 * 9 + 16
    assert build_model("cnn2-wide", (1, 28, 28), 10).size == 1_663_370  # McMahan et al. (2017), section 3
    assert build_model("cnn2-strided", (1, 28, 28), 10).size == kernels + 16 * 36 * 32 + 32 + 32 * 10 + 10
    colours = build_model("cnn2-strided", (3, 32, 32), 10)
    assert colours.size == kernels + 2 * 8 * 25 + 16 * 49 * 32 + 32 + 32 * 10 + 10


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 9, 11), (1, 31, 18)])
def test_the_strided_cnn_and_its_gradient_equal_plain_convolutions_for_stacked_clients(shape):
    model = build_model("cnn2-strided", shape, 7)
    torch.manual_seed(0)
    flat = torch.stack([model.initial(0), model.initial(1)]).requires_grad_()
    images = torch.rand(2, 3, *shape)

    def plain(vector, batch):
        values = [vector[tensor.slice] for tensor in model.tensors]
        kernel, margin = (3, 1) if max(shape) <= 16 else (5, 0)
        batch = conv2d(batch, values[0].view(8, -1, kernel, kernel), values[1], 2, 1).relu()
        batch = conv2d(batch, values[2].view(16, 8, 3, 3), values[3], 2, margin).relu().flatten(1)
        batch = (batch @ values[4].view(-1, 32) + values[5]).relu()
        return batch @ values[6].view(32, -1) + values[7]

    found = vmap(model.logits)(flat, images)
    expected = torch.stack([plain(*pair) for pair in zip(flat, images, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(logits.sin().sum(), flat)[0] for logits in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "size"), [("resnet20", 269_722), ("resnet18", 11_173_962)])
def test_residual_networks_have_the_published_numbers_of_parameters(name, size):
    """Those with BatchNorm, whose affine parameters are as many as GroupNorm's."""
    assert build_model(name, (3, 32, 32), 10).size == size


@pytest.mark.parametrize(("name", "stages", "blocks"), [("resnet20", (16, 32, 64), 3), ("resnet18", (64, 128), 2)])
def test_residual_networks_equal_their_definition(name, stages, blocks):
    model = build_model(name, (3, 9, 8), 10)
    flat = model.initial(0) + 0.1 * torch.randn(model.size, generator=torch.Generator().manual_seed(0))
    images = torch.rand(2, 3, 9, 8)
    shapes = {key: value.shape for key, value in model.make_module().named_parameters()}
    values = {tensor.name: flat[tensor.slice].view(shapes[tensor.name]) for tensor in model.tensors}

    def convolve(inputs, layer, norm, stride=1):
        weight = values[f"{layer}.weight"]
        outputs = conv2d(inputs, weight, None, stride, padding=weight.shape[-1] // 2)
        return group_norm(outputs, 8, values[f"{norm}.weight"], values[f"{norm}.bias"])

    def block(inputs, place, stride):
        inner = convolve(inputs, f"{place}.conv1", f"{place}.norm1", stride).relu()
        inner = convolve(inner, f"{place}.conv2", f"{place}.norm2")
        if f"{place}.shortcut.conv.weight" in values:
            return inner + convolve(inputs, f"{place}.shortcut.conv", f"{place}.shortcut.norm", stride)
        sampled = inputs[:, :, ::stride, ::stride]
        missing = inner.shape[1] - inputs.shape[1]
        return inner + torch.cat([sampled, torch.zeros(len(inputs), missing, *sampled.shape[2:])], dim=1)

    hidden = convolve(images, "conv", "norm").relu()
    widths = []
    for stage in range(1, 1 + sum(key.endswith("_block1.conv1.weight") for key in values)):
        for index in range(1, blocks + 1):
            stride = 2 if stage > 1 and index == 1 else 1
            hidden = block(hidden, f"stage{stage}_block{index}", stride).relu()
        widths.append(hidden.shape[1])
    assert tuple(widths[: len(stages)]) == stages
    expected = hidden.mean((2, 3)) @ values["fc.weight"] + values["fc.bias"]
    torch.testing.assert_close(model.logits(flat, images), expected, atol=1e-4, rtol=1e-4)


def test_layers_of_nested_blocks_are_one_span_each_in_order():
    model = build_model("resnet18", (3, 32, 32), 10)
    names = [layer.name for layer in model.layers]
    assert names[:4] == ["conv", "norm", "stage1_block1.conv1", "stage1_block1.norm1"]
    assert names[-1] == "fc"
    assert len(set(names)) == len(names) == 20 + 20 + 1
    assert len(model.convolutions) == 20
    assert model.convolutions[-1].name == "stage4_block2.conv2"
    assert all(a.stop == b.start for a, b in pairwise(model.layers))


def test_cnn8_pools_after_each_second_convolution():
    names = [name for name, _ in build_model("cnn8", (1, 28, 28), 47).make_module().named_children()]
    assert names[:6] == ["conv1", "relu1", "conv2", "pool2", "relu2", "conv3"]
    model = build_model("cnn8", (3, 32, 32), 10)
    widths = (3, 32, 32, 64, 64, 128, 128)
    kernels = sum(9 * a * b + b for a, b in pairwise(widths))
    assert model.size == kernels + 128 * 16 * 128 + 128 + 128 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, (1, 8, 8)) for name in MODELS if name not in ("lenet", "resnet20")), ("resnet20", (3, 8, 9))],
)
def test_traced_gradients_of_stacked_clients_equal_the_module_of_each(name, shape):
    """The programs that both executors replay, against plain modules."""
    model = build_model(name, shape, 5)
    torch.manual_seed(0)
    flat = torch.stack([model.initial(0), model.initial(1)])
    images, labels = torch.rand(2, 3, *shape), torch.tensor([[0, 1, 4], [2, 2, 3]])

    def stacked(values, images):
        leaf = values.detach().requires_grad_()
        logits = vmap(model.logits)(leaf, images)
        return torch.autograd.grad(3 * cross_entropy(logits.flatten(0, 1), labels.flatten()), leaf)[0]

    def alone(values, images):
        leaf = values.detach().requires_grad_()
        return torch.autograd.grad(1.5 * cross_entropy(model.logits_alone(leaf, images), labels[0]), leaf)[0]

    expected = []
    for row in range(2):
        module = model.make_module()
        torch.nn.utils.vector_to_parameters(flat[row], module.parameters())
        loss = 1.5 * cross_entropy(module(images[row]), labels[row])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        expected.append(torch.cat([value.flatten() for value in gradients]))
    if name != "resnet18":  # tracing it takes long, and meets nothing that ResNet-20 does not have
        stacked, alone = trace(stacked, flat, images), trace(alone, flat[0], images[0])
    found, single = stacked(flat, images), alone(flat[0], images[0])
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(single, expected[0], atol=1e-4, rtol=1e-3)


def test_digits_mlp_has_the_parameters_of_a_64_32_10_network():
    assert build_model("mlp", (1, 8, 8), 10).size == 64 * 32 + 32 + 32 * 10 + 10


def test_initialisation_depends_on_the_seed_alone():
    model = build_model("mlp", (1, 8, 8), 10)
    torch.manual_seed(1)
    first = model.initial(5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(first, model.initial(5))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, model.initial(6))


def test_group_norm_works_under_a_map():
    model = build_model("cnn2-groupnorm", (1, 8, 8), 10)
    flat = torch.stack([model.initial(0), model.initial(1)])
    images = torch.rand(2, 3, 1, 8, 8)
    stacked = vmap(model.logits)(flat, images)
    torch.testing.assert_close(stacked[1], model.logits(flat[1], images[1]))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("cnn4", (1, 28, 28), "did you mean cnn"),
        ("lenet", (1, 8, 8), "at least 28x28"),
        ("mlp-groupnorm", (1, 8, 8), "no convolution"),
        ("resnet20-groupnorm", (3, 32, 32), "use 'resnet20', because it has GroupNorm already"),
        ("resnet18-groupnorm", (3, 32, 32), "use 'resnet18', because it has GroupNorm already"),
        ("cnn2-strided", (1, 20, 6), "20x6 pixels is too small"),
    ],
)
def test_impossible_models_are_refused_in_a_sentence(name, shape, message):
    with pytest.raises(InputError, match=message):
        build_model(name, shape, 10)
