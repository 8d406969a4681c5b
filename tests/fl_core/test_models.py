import pytest
import torch
from torch.func import vmap

from fl_core.errors import InputError
from fl_core.models import MODELS, build_model


@pytest.mark.parametrize("name", [*MODELS, "cnn2-groupnorm", "cnn3-groupnorm"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_logits_equal_the_module_loaded_with_the_same_vector(name, shape):
    if name == "lenet" and shape[1] < 28:
        pytest.skip("too small for this model")
    model = build_model(name, shape, 7)
    flat, images = model.initial(3), torch.rand(4, *shape)
    module = model.make_module()
    torch.nn.utils.vector_to_parameters(flat, module.parameters())
    torch.testing.assert_close(model.logits(flat, images), module(images))
    torch.testing.assert_close(model.logits_alone(flat, images), module(images), atol=1e-5, rtol=1e-5)


def test_layers_tile_the_vector_in_order_and_the_head_is_last():
    model = build_model("cnn2", (1, 8, 8), 10)
    assert [layer.name for layer in model.layers] == ["conv1", "conv2", "fc1", "fc2"]
    assert model.layers[0].start == 0
    assert all(a.stop == b.start for a, b in zip(model.layers, model.layers[1:], strict=False))
    assert model.head.stop == model.size
    assert model.head.name == "fc2"
    assert model.head.stop - model.head.start == 32 * 10 + 10
    assert (model.body.start, model.body.stop) == (0, model.head.start)


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
    ],
)
def test_impossible_models_are_refused_in_a_sentence(name, shape, message):
    with pytest.raises(InputError, match=message):
        build_model(name, shape, 10)
