import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets as tv

from fl_core.base.errors import InputError
from fl_core.data import loaders
from fl_core.data.datasets import Dataset, dataset_available, load_dataset
from tests.fl_core.data import writers
from tests.fl_core.data.conftest import Attempts
from tests.fl_core.data.writers import Arrays, random_arrays

GREY = (28, 28)
COLOUR = (3, 32, 32)
TRAIN = random_arrays(20, 10, GREY, seed=1)
TEST = random_arrays(8, 10, GREY, seed=2)
EMNIST = {"balanced": 47, "byclass": 62, "letters": 26, "digits": 10}


def assert_holds(data: Dataset, train: Arrays, test: Arrays) -> None:
    """The dataset has exactly these images and labels, in this order."""
    for images, labels, (true_images, true_labels) in (
        (data.train_images, data.train_labels, train),
        (data.test_images, data.test_labels, test),
    ):
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert images.is_contiguous()
        assert np.array_equal(images.numpy(), true_images.reshape(images.shape))
        assert labels.tolist() == true_labels.tolist()


# --- IDX --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_are_read(name: str, folder: str, gzipped: bool, tmp_path: Path, attempts: Attempts) -> None:
    writers.write_idx(tmp_path / folder / "raw", TRAIN, TEST, gzipped)
    assert dataset_available(name, tmp_path)
    data = load_dataset(name, tmp_path)
    assert_holds(data, TRAIN, TEST)
    assert (data.shape, data.scale, data.train_groups) == ((1, 28, 28), 255.0, None)
    assert not attempts


def test_fashion_mnist_of_debian_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers.write_idx(tmp_path / "root/FashionMNIST/raw", TEST, TEST)
    writers.write_idx(tmp_path / "debian", TRAIN, TEST, gzipped=True)
    monkeypatch.setattr(loaders, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    assert dataset_available("fashion-mnist", tmp_path / "elsewhere")
    assert_holds(load_dataset("fashion-mnist", tmp_path / "root"), TRAIN, TEST)


def test_incomplete_debian_folder_names_the_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers.write_idx(tmp_path, TRAIN, TEST, gzipped=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setattr(loaders, "DEBIAN_FASHION_MNIST", tmp_path)
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte\.gz' cannot be used \(No such file"):
        load_dataset("fashion-mnist", tmp_path)


@pytest.mark.parametrize("stem", writers.MNIST_STEMS)
@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("kept", [0, 3, 11, 0.5, 0.99])
def test_truncated_idx_file_is_named(stem: str, gzipped: bool, kept: float, tmp_path: Path) -> None:
    writers.write_idx(tmp_path / "MNIST/raw", TRAIN, TEST, gzipped)
    path = tmp_path / "MNIST/raw" / (f"{stem}.gz" if gzipped else stem)
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used \([^\n]*\); [^\n]*\.$"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize(
    "content", [b"<html>not found</html>", b"\0\0\x0a\3" + bytes(40), b"\0\0\x0d\1\0\0\0\1" + bytes(4)]
)
def test_file_that_is_no_idx_file_is_named(content: bytes, tmp_path: Path) -> None:
    writers.write_idx(tmp_path / "MNIST/raw", TRAIN, TEST)
    path = tmp_path / "MNIST/raw" / writers.MNIST_STEMS[0]
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used"):
        load_dataset("mnist", tmp_path)


def test_corrupt_gzip_is_named(tmp_path: Path) -> None:
    writers.write_idx(tmp_path / "MNIST/raw", TRAIN, TEST, gzipped=True)
    path = tmp_path / "MNIST/raw" / f"{writers.MNIST_STEMS[2]}.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used"):
        load_dataset("mnist", tmp_path)


def test_labels_that_do_not_match_the_images_are_refused(tmp_path: Path) -> None:
    writers.write_idx(tmp_path / "MNIST/raw", (TRAIN[0], TRAIN[1][:-1]), TEST)
    with pytest.raises(InputError, match="20 images but 19 labels"):
        load_dataset("mnist", tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    writers.write_idx(tmp_path / "MNIST/raw", TRAIN, (TEST[0], np.full(8, 10)))
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte' cannot be used \(its labels are 10..10, not 0..9\)"):
        load_dataset("mnist", tmp_path)


def test_dataset_without_samples_is_refused(tmp_path: Path) -> None:
    empty = random_arrays(0, 10, GREY)
    writers.write_idx(tmp_path / "MNIST/raw", TRAIN, empty)
    with pytest.raises(InputError, match="t10k"):
        load_dataset("mnist", tmp_path)


# --- EMNIST -----------------------------------------------------------------------------------------------------------


def emnist(split: str) -> tuple[Arrays, Arrays]:
    """Training and test samples, upright and counted from 0; every class occurs."""
    classes = EMNIST[split]
    images, _ = random_arrays(classes, classes, GREY, seed=3)
    return (images, np.arange(classes)), (images[::-1], np.arange(classes)[::-1])


def emnist_files(split: str) -> dict[str, bytes]:
    """As published: on their side, letters counted from 1."""
    first = 1 if split == "letters" else 0
    (train, train_labels), (test, test_labels) = emnist(split)
    return writers.emnist_contents(split, (train, train_labels + first), (test, test_labels + first))


@pytest.mark.parametrize("split", EMNIST)
@pytest.mark.parametrize("gzipped", [False, True])
def test_emnist_is_upright_and_counted_from_zero(split: str, gzipped: bool, tmp_path: Path) -> None:
    for name, content in emnist_files(split).items():
        path = tmp_path / "EMNIST/raw" / name
        writers.write(path.with_suffix(".gz") if gzipped else path, gzip.compress(content) if gzipped else content)
    data = load_dataset(f"emnist-{split}", tmp_path)
    assert_holds(data, *emnist(split))
    assert data.classes == EMNIST[split]


def test_emnist_archive_is_unpacked_without_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: Attempts
) -> None:
    archive = tmp_path / "EMNIST/raw/gzip.zip"
    writers.write_emnist_zip(archive, {**emnist_files("letters"), **emnist_files("digits")}, monkeypatch)
    assert dataset_available("emnist-letters", tmp_path)
    assert_holds(load_dataset("emnist-letters", tmp_path), *emnist("letters"))
    assert archive.is_file()
    archive.unlink()
    assert_holds(load_dataset("emnist-digits", tmp_path), *emnist("digits"))
    assert not attempts


def test_damaged_archive_is_named_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: Attempts
) -> None:
    archive = tmp_path / "EMNIST/raw/gzip.zip"
    writers.write_emnist_zip(archive, emnist_files("digits"), monkeypatch)
    truncated = archive.read_bytes()[:-10]
    archive.write_bytes(truncated)
    with pytest.raises(InputError, match=rf"^The file '{archive}' cannot be used \(its md5 checksum"):
        load_dataset("emnist-digits", tmp_path)
    assert archive.read_bytes() == truncated
    assert [path.name for path in tmp_path.iterdir()] == ["EMNIST"]
    assert not attempts


# --- SVHN and CIFAR ---------------------------------------------------------------------------------------------------


def test_svhn_is_read_with_ten_as_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: Attempts) -> None:
    train, test = random_arrays(15, 10, COLOUR, seed=4), random_arrays(7, 10, COLOUR, seed=5)
    train[1][:2] = 0
    writers.write_svhn(tmp_path, {"train": train, "test": test}, monkeypatch)
    assert_holds(load_dataset("svhn", tmp_path), train, test)
    assert not attempts


@pytest.mark.parametrize(("name", "dataset"), [("cifar10", tv.CIFAR10), ("cifar100", tv.CIFAR100)])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar_is_read(
    name: str, dataset: type, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempts: Attempts
) -> None:
    classes = int(name.removeprefix("cifar"))
    train, test = random_arrays(23, classes, COLOUR, seed=6), random_arrays(9, classes, COLOUR, seed=7)
    writers.write_cifar(tmp_path, dataset, train, test, monkeypatch)
    if packed:
        writers.pack_cifar(tmp_path, dataset, monkeypatch)
    assert dataset_available(name, tmp_path)
    data = load_dataset(name, tmp_path)
    assert_holds(data, train, test)
    assert data.classes == classes
    assert not attempts


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_3", "cifar-10-batches-py/batches.meta"])
def test_damaged_cifar_batch_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_arrays(23, 10, COLOUR, seed=6), random_arrays(9, 10, COLOUR, seed=7)
    writers.write_cifar(tmp_path, tv.CIFAR10, train, test, monkeypatch)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used \(its md5 checksum"):
        load_dataset("cifar10", tmp_path)


def test_damaged_svhn_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = random_arrays(5, 10, COLOUR)
    writers.write_svhn(tmp_path, {"train": part, "test": part}, monkeypatch)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used \(its md5 checksum"):
        load_dataset("svhn", tmp_path)


def test_file_that_passes_its_checksum_but_not_the_parser_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = random_arrays(5, 10, COLOUR)
    writers.write_svhn(tmp_path, {"train": part, "test": part}, monkeypatch)
    path = tmp_path / "train_32x32.mat"
    tv.SVHN.split_list["train"][2] = writers.write(path, b"no MATLAB file")
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used"):
        load_dataset("svhn", tmp_path)
