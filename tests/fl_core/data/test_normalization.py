import pytest
import torch

from fl_core.base.errors import InputError
from fl_core.data.datasets import DATASETS
from fl_core.data.normalization import Normalization, find_normalization
from fl_core.training.images import Images

CIFAR = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), "stated")


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("constants", [CIFAR, Normalization((0.5,), (0.25,), "stated"), None])
def test_images_are_read_as_pixels_less_mean_over_std(kept, constants, monkeypatch):
    if not kept:
        monkeypatch.setattr("fl_core.training.images.FLOAT_IMAGES", 0)
    pixels = torch.randint(0, 256, (7, 3, 4, 5), dtype=torch.uint8)
    index = torch.tensor([[0, 6], [3, 3]])
    images = Images(pixels, torch.arange(7), 255.0, constants)
    found, labels = images.read(index)
    assert torch.equal(labels, index)
    expected = pixels[index].double() / 255
    black = torch.zeros(3, dtype=torch.float64)
    if constants is not None:
        mean, std = (torch.tensor(one, dtype=torch.float64).expand(3) for one in (constants.mean, constants.std))
        expected = (expected - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        black = -mean / std
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(images.black.double(), black, atol=1e-6, rtol=1e-6)


def test_published_constants_are_those_of_the_dataset_and_name_their_source():
    for name in ("mnist", "mnist5k", "fashion-mnist", "svhn", "cifar10", "cifar100", "femnist", "emnist-byclass"):
        constants = DATASETS.find(name).normalization
        assert constants is not None
        assert constants.source
        channels = 3 if name in ("svhn", "cifar10", "cifar100") else 1
        assert find_normalization("published", name, constants, channels) == constants
    assert DATASETS.find("cifar10").normalization.mean == CIFAR.mean
    assert DATASETS.find("digits").normalization is None


def test_stated_constants_serve_all_channels_or_each():
    assert find_normalization("none", "x", CIFAR, 3) is None
    assert find_normalization("0.5/0.25", "x", None, 3) == Normalization((0.5,), (0.25,), "as given")
    assert find_normalization("0.1,0.2,0.3/1,2,3", "x", None, 3).std == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("published", "dataset 'mine' has no published constants"),
        ("dataset", "none, published, or public constants"),
        ("0.5", "public constants like 0.5/0.5"),
        ("0.5/0", "std of input_normalization"),
        ("0.5/-1", "std of input_normalization"),
        ("x/1", "mean of input_normalization"),
        ("nan/1", "mean of input_normalization"),
        ("/1", "no mean"),
        ("0.1,0.2/1", "3 channel(s)"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_sentence(text, words):
    with pytest.raises(InputError, match="normalization") as error:
        find_normalization(text, "mine", None, 3)
    assert words in str(error.value)
