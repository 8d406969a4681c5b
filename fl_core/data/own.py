"""Datasets of users, as entries of the catalogue: arrays, files, and functions that return them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError, first_line, require
from fl_core.base.libraries import torch
from fl_core.base.sources import told
from fl_core.data.arrays import samples_of, samples_sha256
from fl_core.data.own_files import dataset_file
from fl_core.data.samples import DatasetEntry, NotObtained, Samples


def dataset_entry_of(given: Any, who: str) -> DatasetEntry:
    """Make an entry of what a user gives.

    Args:
        given: a `DatasetEntry`, `Samples`, `(images, labels)` or `(images, labels, clients)`, arrays by name as in
            `ARRAYS`, a torch dataset, a path of an `.npz` or a folder, or a function that takes no argument and returns
            one of these when the dataset is first needed.
        who: for error messages.

    Raises:
        InputError: it is none of these, or its arrays are no dataset.
    """
    if isinstance(given, DatasetEntry):
        return given
    if isinstance(given, (str, Path)):
        found = dataset_file(Path(given), who)
        require(found is not None, f"{who} is the path '{given}', but there is no .npz file or folder with images.")
        assert found is not None
        return found
    if callable(given) and not isinstance(given, (Samples, Mapping, torch.utils.data.Dataset)):
        _require_no_arguments(given, who)
        return DatasetEntry.of_user(
            partial(_load_function, given, who), _first_sentence(given) or "returned by a function"
        )
    samples = samples_of(given, who)
    words = f"{len(samples.train_labels):,} + {len(samples.test_labels):,} samples as given"
    return DatasetEntry.of_user(_Kept(samples), words, samples_sha256(samples))


@dataclass(frozen=True, eq=False)
class _Kept:
    """Loader of samples that are in memory already."""

    samples: Samples

    def __call__(self, root: Path, classes: int) -> Samples:
        return self.samples


def _first_sentence(given: Any) -> str:
    return (inspect.getdoc(given) or "").partition("\n")[0].rstrip(".") if inspect.isfunction(given) else ""


def _require_no_arguments(given: Any, who: str) -> None:
    try:
        inspect.signature(given).bind()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{who} cannot be called without arguments ({first_line(error)}); its function must return the arrays."
        ) from error


def _load_function(function: Callable[[], Any], who: str, root: Path, classes: int) -> Samples:
    """Call a user's function and read the samples that it returns."""
    try:
        given = function()
    except (InputError, NotObtained, MemoryError):
        raise
    except Exception as error:
        file = inspect.getsourcefile(inspect.unwrap(function)) if inspect.isfunction(function) else None
        raise InputError(f"{who} cannot be loaded: {told(error, Path(file) if file else None)}.") from error
    if isinstance(given, (DatasetEntry, str, Path)):
        return dataset_entry_of(given, who).load(root, classes)
    return samples_of(given, who)
