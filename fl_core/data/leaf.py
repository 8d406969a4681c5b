"""Loader of FEMNIST as LEAF writes it: JSON files of writers, each with images of 28x28 grey values in 0..1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fl_core.base.files import parse_json, read_bytes
from fl_core.base.libraries import ndarray, torch
from fl_core.base.libraries import numpy as np
from fl_core.data.samples import NotObtained, Samples, checked, reading, unusable

FOLDER = "femnist"
SIDE = 28
Writer = tuple[ndarray, ndarray]
"""Images uint8 [n, 784] and labels int64 [n] of one writer."""


def femnist_present(root: Path) -> bool:
    """Return True if both folders hold at least one JSON file."""
    return all(_json_files(root, part) for part in ("train", "test"))


def load_femnist(root: Path, classes: int) -> Samples:
    """Read root/femnist/{train,test}/*.json whole; writers, in alphabetical order, are the groups.

    Those who are in the test files alone, as with LEAF's `-t user`, are numbered after the others.

    Source: Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings".

    Raises:
        NotObtained: a folder is missing or empty.
        InputError: a file is not what LEAF writes; the sentence names it.
    """
    if not femnist_present(root):
        raise NotObtained(f"its folders '{FOLDER}/train' and '{FOLDER}/test' do not both hold JSON files")
    train, test = (_read_part(root, part, classes) for part in ("train", "test"))
    number = {name: position for position, name in enumerate([*train, *(name for name in test if name not in train)])}
    path = root / FOLDER
    return Samples(
        *checked(*_stack(train), classes, path / "train"),
        *checked(*_stack(test), classes, path / "test"),
        *(_groups(part, number) for part in (train, test)),
    )


def _groups(writers: dict[str, Writer], number: dict[str, int]) -> torch.Tensor:
    """Number each sample by its writer: int64 `[n]`."""
    numbers = [np.full(len(labels), number[name], dtype=np.int64) for name, (_, labels) in writers.items()]
    return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *numbers]))


def _json_files(root: Path, part: str) -> list[Path]:
    return sorted((root / FOLDER / part).glob("*.json"))


def _read_part(root: Path, part: str, classes: int) -> dict[str, Writer]:
    """Read the writers of all files of one folder, sorted by name."""
    writers: dict[str, Writer] = {}
    for path in _json_files(root, part):
        for name, writer in _read_file(path, classes).items():
            if name in writers:
                raise unusable(path, f"writer '{name}' is in another file too")
            writers[name] = writer
    return dict(sorted(writers.items()))


def _read_file(path: Path, classes: int) -> dict[str, Writer]:
    with reading(path):
        content = parse_json(read_bytes(path), f"The file '{path}'", records=False)
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        if not (len(users) == len(counts) == len(data)):
            raise ValueError("users, num_samples and user_data differ in length")
        named = isinstance(users, list) and isinstance(data, dict) and all(isinstance(user, str) for user in users)
        if not named or set(users) != set(data):
            raise ValueError("users are not the names in user_data, each once")
        return {user: _writer(data[user], count, classes) for user, count in zip(users, counts, strict=True)}


def _writer(data: Any, count: Any, classes: int) -> Writer:
    """Check one writer's samples and convert them; raises ValueError with the reason."""
    x, y = np.asarray(data["x"]), np.asarray(data["y"])
    if count == x.size == y.size == 0:
        return np.empty((0, SIDE * SIDE), np.uint8), np.empty(0, np.int64)
    if x.shape != (count, SIDE * SIDE) or y.shape != (count,):
        raise ValueError(f"a writer of {count} samples has x of shape {x.shape} and y of shape {y.shape}")
    if x.dtype.kind not in "iuf" or not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError("x has values that are not numbers in 0..1")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
        raise ValueError(f"y has values that are not whole numbers in 0..{classes - 1}")
    return np.rint(x * 255).astype(np.uint8), y.astype(np.int64)


def _stack(writers: dict[str, Writer]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack all writers' images (uint8 `[n, 1, 28, 28]`) and labels (int64 `[n]`)."""
    images = np.concatenate([np.empty((0, SIDE * SIDE), np.uint8), *(images for images, _ in writers.values())])
    labels = np.concatenate([np.empty(0, np.int64), *(labels for _, labels in writers.values())])
    return torch.from_numpy(images.reshape(-1, 1, SIDE, SIDE)), torch.from_numpy(labels)
