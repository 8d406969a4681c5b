"""Small files in the formats in which the datasets are published, written without the code under test."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torchvision.datasets as tv

Arrays = tuple[np.ndarray, np.ndarray]
"""Images and labels."""
MNIST_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def random_arrays(count: int, classes: int, shape: tuple[int, ...], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, classes, count)


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(path: Path, content: bytes) -> str:
    """Write a file and return its md5."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return _md5(path)


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_idx(folder: Path, train: Arrays, test: Arrays, gzipped: bool = False) -> None:
    for stem, array in zip(MNIST_STEMS, (*train, *test), strict=True):
        content = idx_bytes(array)
        write(folder / f"{stem}.gz" if gzipped else folder / stem, gzip.compress(content) if gzipped else content)


def emnist_contents(split: str, train: Arrays, test: Arrays) -> dict[str, bytes]:
    """File name -> content, as published: images lie on their side."""
    contents = {}
    for part, (images, labels) in (("train", train), ("test", test)):
        contents[f"emnist-{split}-{part}-images-idx3-ubyte"] = idx_bytes(images.swapaxes(1, 2))
        contents[f"emnist-{split}-{part}-labels-idx1-ubyte"] = idx_bytes(labels)
    return contents


def write_emnist_zip(path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The published archive, gzipped files in a zip; torchvision is told this one's checksum."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"gzip/{name}.gz", gzip.compress(content))
    monkeypatch.setattr(tv.EMNIST, "md5", write(path, buffer.getvalue()))


def write_svhn(root: Path, parts: dict[str, Arrays], monkeypatch: pytest.MonkeyPatch) -> None:
    """MATLAB files with X [32, 32, 3, n] and y in 1..10; torchvision is told their checksums."""
    splits = {}
    for split, (images, labels) in parts.items():
        name = f"{split}_32x32.mat"
        path = root / name
        y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        scipy.io.savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": y})
        splits[split] = [f"http://host.invalid/{name}", name, _md5(path)]
    monkeypatch.setattr(tv.SVHN, "split_list", splits)


def write_cifar(root: Path, dataset: Any, train: Arrays, test: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python batches as published; torchvision is told their checksums."""
    key = "labels" if dataset is tv.CIFAR10 else "fine_labels"
    folder = root / dataset.base_folder

    def batch(name: str, images: np.ndarray, labels: np.ndarray) -> list[str]:
        content = {"data": images.reshape(len(images), -1), key: labels.tolist()}
        return [name, write(folder / name, pickle.dumps(content))]

    names = [name for name, _ in dataset.train_list]
    pieces = zip(names, *(np.array_split(array, len(names)) for array in train), strict=True)
    monkeypatch.setattr(dataset, "train_list", [batch(*piece) for piece in pieces])
    monkeypatch.setattr(dataset, "test_list", [batch(dataset.test_list[0][0], *test)])
    meta = dict(dataset.meta)
    meta["md5"] = write(folder / meta["filename"], pickle.dumps({meta["key"]: ["a class"]}))
    monkeypatch.setattr(dataset, "meta", meta)


def pack_cifar(root: Path, dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the folder of batches by the published archive of it."""
    folder = root / dataset.base_folder
    with tarfile.open(root / dataset.filename, "w:gz") as archive:
        archive.add(folder, dataset.base_folder)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    monkeypatch.setattr(dataset, "tgz_md5", _md5(root / dataset.filename))


def leaf_content(writers: dict[str, Arrays]) -> dict[str, Any]:
    """LEAF's JSON of writers' images uint8 [n, 28, 28]."""
    data = {
        name: {"x": (images.reshape(len(images), -1) / 255).tolist(), "y": labels.tolist()}
        for name, (images, labels) in writers.items()
    }
    return {"users": list(data), "num_samples": [len(item["y"]) for item in data.values()], "user_data": data}


def write_leaf(path: Path, content: object) -> None:
    write(path, json.dumps(content).encode())
