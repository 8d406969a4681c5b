"""Datasets by name: whole in memory, split into training and pooled test samples; pixels are uint8 until used.

To add one for good, write a loader in `loaders.py` and add a line to `catalog.py`; one of a user's own is registered,
or named as a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fl_core.base.arguments import checked
from fl_core.base.arrays import IndexArray
from fl_core.base.catalogue import Catalogue
from fl_core.base.devices import check_device
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.libraries import Tensor, torch
from fl_core.base.libraries import numpy as np
from fl_core.data.catalog import BUILT_IN
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


DATASETS = Catalogue("dataset", BUILT_IN, dataset_entry_of, dataset_file)


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


def outline_of(name: str, root: str | Path | None = None) -> tuple[Dataset, int]:
    """Describe a dataset by what is public: one without samples, of its shape and classes, and the number to train on.

    Nothing of a built-in dataset is opened: its outline is published. Of any other, and of one whose size depends on
    how it was made, the files are read for their shape, classes and number of samples.

    Raises:
        InputError: as `load_dataset`, for a dataset that has to be read.
    """
    entry = dataset_entry(name)
    if not entry.shape:
        whole = load_dataset(name, root)
        return replace(whole, **_empty(whole.train_images)), len(whole.train_labels)
    pixels = torch.empty((0, *entry.shape), dtype=torch.uint8)
    return Dataset(name=name, classes=entry.classes, scale=entry.scale, **_empty(pixels)), entry.train_samples


def _empty(images: Tensor) -> dict[str, Any]:
    """Make the tensors of a dataset without samples, with images of this shape and type."""
    none, labels = images[:0], torch.empty(0, dtype=torch.int64)
    return {
        "train_images": none,
        "train_labels": labels,
        "test_images": none,
        "test_labels": labels,
        "train_groups": None,
        "test_groups": None,
    }


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
