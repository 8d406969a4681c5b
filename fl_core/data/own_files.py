"""Datasets in files of a user's: an `.npz` of arrays, or a folder of images with a table of their labels."""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError, first_line, require, unknown_name
from fl_core.base.libraries import numpy as np
from fl_core.base.libraries import torch
from fl_core.base.memory import free_bytes
from fl_core.base.sources import file_sha256
from fl_core.data.arrays import samples_of
from fl_core.data.samples import DatasetEntry, Samples

LABELS_FILE = "labels.csv"
_COLUMNS = ("file", "label", "client", "part")


def dataset_file(path: Path, who: str) -> DatasetEntry | None:
    """Make an entry of an `.npz` with arrays named as in `ARRAYS`, or of a folder of images with `labels.csv`.

    Raises:
        InputError: there is no such `.npz`, or the folder has no such file.
    """
    if path.suffix == ".npz":
        require(os.path.isfile(path), f"{who}: there is no file '{path}'.")
        return _entry(path, _load_npz, who, "arrays in an .npz file")
    if os.path.isdir(path):
        required = f"{who} is a folder without {LABELS_FILE}, a table with the columns file and label."
        require((path / LABELS_FILE).is_file(), required)
        return _entry(path, _load_folder, who, "a folder of images")
    return None


def _entry(path: Path, load: Callable[[Path, str], Samples], who: str, description: str) -> DatasetEntry:
    return DatasetEntry.of_user(partial(_unchanged, path, file_sha256(path), load, who), description)


def _unchanged(
    path: Path, sha256: str, load: Callable[[Path, str], Samples], who: str, root: Path, classes: int
) -> Samples:
    """Load a file or folder that is still the one whose digest is recorded."""
    require(file_sha256(path) == sha256, f"{who} has changed since this process named it first; start it again.")
    return load(path, who)


def _load_npz(path: Path, who: str) -> Samples:
    """Read an `.npz`; no pickle in it is."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            _require_room(path, who)
            arrays = {name: _stored(stored, name, who) for name in stored.files}
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{who} has arrays that do not fit into memory.") from error
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        raise InputError(f"{who} is no readable .npz file ({first_line(error)}).") from error
    return samples_of(arrays, who)


def _stored(stored: Any, name: str, who: str) -> np.ndarray:
    try:
        array: np.ndarray = stored[name]
    except ValueError as error:
        if "pickle" in str(error):
            raise InputError(f"{who}: array '{name}' holds Python objects, which are not loaded.") from error
        raise
    return array


def _require_room(path: Path, who: str) -> None:
    """Refuse an archive that unpacks to more than the memory, by its own table."""
    with zipfile.ZipFile(path) as archive:
        size = sum(one.file_size for one in archive.infolist())
    free = free_bytes(torch.device("cpu"))
    require(size <= free, f"{who} unpacks to {size / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB of memory are free.")


def _load_folder(path: Path, who: str) -> Samples:
    """Read the images that `labels.csv` names: columns file, label, and optionally client and part (train or test)."""
    rows = _label_rows(path / LABELS_FILE, who)
    images = _read_images(path, [row["file"] for row in rows], who)
    labels = np.array([row["label"] for row in rows])
    if all(text.isascii() and text.isdigit() for text in labels):
        labels = labels.astype(np.int64)
    clients = np.array([row["client"] for row in rows]) if "client" in rows[0] else None
    test = np.array([row.get("part", "train") == "test" for row in rows])
    arrays: dict[str, Any] = {"images": images, "labels": labels, "clients": clients}
    if test.any():
        require(not test.all(), f"{who}: all rows of {LABELS_FILE} are of the part test.")
        parts = [(name, values) for name, values in arrays.items() if values is not None]
        arrays = {name: values[~test] for name, values in parts} | {f"test_{name}": v[test] for name, v in parts}
    return samples_of(arrays, who)


def _label_rows(path: Path, who: str) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows, columns = list(reader), list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{who}: '{path}' is no readable table ({first_line(error)}).") from error
    for name in columns:
        if name not in _COLUMNS:
            raise unknown_name(f"{who}: column of {LABELS_FILE}", name, _COLUMNS)
    for name in _COLUMNS[:2]:
        require(name in columns, f"{who}: {LABELS_FILE} has no column '{name}'; its first line must be file,label.")
    require(bool(rows), f"{who}: {LABELS_FILE} names no image.")
    for number, row in enumerate(rows, start=2):
        whole = set(row) == set(columns) and all(row.values())
        require(whole, f"{who}: line {number} of {LABELS_FILE} does not fill its {len(columns)} columns.")
        part = row.get("part", "train")
        require(
            part in ("train", "test"), f"{who}: line {number} of {LABELS_FILE} has part '{part}', not train or test."
        )
    return rows


def _read_images(folder: Path, names: Sequence[str], who: str) -> np.ndarray:
    """Read images of one size: `[n, height, width]` if all are grey, else `[n, height, width, 3]`."""
    from PIL import Image

    found: list[np.ndarray] = []
    grey, size = True, (0, 0)
    for name in names:
        path = folder / name
        require(folder.resolve() in path.resolve().parents, f"{who}: image '{name}' lies outside of the folder.")
        try:
            with Image.open(path) as image:
                size = size if found else image.size
                same = image.size == size
                require(same, f"{who}: image '{name}' has {image.size} pixels, but '{names[0]}' has {size}.")
                grey = grey and image.mode in ("1", "L")
                found.append(np.asarray(image.convert("RGB")))
        except InputError:
            raise
        except Exception as error:  # each format of Pillow raises its own
            raise InputError(f"{who}: image '{name}' cannot be read ({first_line(error)}).") from error
    images = np.stack(found)
    return images[..., 0] if grey else images
