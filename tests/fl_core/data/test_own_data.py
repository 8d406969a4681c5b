"""Arrays, functions, `.npz` files and folders of a user are datasets, or refused in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fl_core.base.errors import InputError
from fl_core.data.arrays import from_arrays
from fl_core.data.datasets import DATASETS, load_dataset
from fl_core.data.samples import Samples
from tests.markdown import restored_catalogues

COUNT = 60
LABELS = np.arange(COUNT) % 3
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (COUNT, 5, 6)).astype(np.uint8)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with restored_catalogues():
        yield


@pytest.mark.parametrize(
    ("images", "shape", "kind"),
    [
        (PIXELS, (1, 5, 6), torch.uint8),
        (PIXELS[:, None], (1, 5, 6), torch.uint8),
        (np.stack([PIXELS] * 3, axis=-1), (3, 5, 6), torch.uint8),
        (np.stack([PIXELS] * 3, axis=1), (3, 5, 6), torch.uint8),
        (PIXELS.astype(np.int64), (1, 5, 6), torch.uint8),
        (PIXELS / 255, (1, 5, 6), torch.float32),
        (PIXELS / np.float16(255), (1, 5, 6), torch.float32),
        (torch.from_numpy(PIXELS), (1, 5, 6), torch.uint8),
        (PIXELS.tolist(), (1, 5, 6), torch.uint8),
        (PIXELS.reshape(COUNT, 30) - 100.0, (1, 1, 30), torch.float32),
        (PIXELS.reshape(COUNT, 30), (1, 1, 30), torch.float32),
        (np.asfortranarray(PIXELS), (1, 5, 6), torch.uint8),
    ],
)
def test_images_of_any_form_become_samples(images: Any, shape: tuple[int, ...], kind: torch.dtype) -> None:
    samples = from_arrays(images, LABELS)
    assert (tuple(samples.train_images.shape[1:]), samples.train_images.dtype) == (shape, kind)
    assert (len(samples.train_labels), len(samples.test_labels)) == (48, 12)


def test_values_labels_and_clients_stay_together() -> None:
    images = np.arange(COUNT, dtype=np.float64)[:, None] * [1.0, 10.0]
    samples = from_arrays(images, LABELS, np.array([f"client {index // 20}" for index in range(COUNT)]))
    assert samples.train_groups is not None
    assert samples.test_groups is not None
    for part in (
        (samples.train_images, samples.train_labels, samples.train_groups),
        (samples.test_images, samples.test_labels, samples.test_groups),
    ):
        for image, label, group in zip(*part, strict=True):
            number = round(float(image[0, 0, 0]))
            assert float(image[0, 0, 1]) == 10 * number
            assert (int(label), int(group)) == (number % 3, number // 20)
    assert torch.bincount(samples.test_groups).tolist() == [4, 4, 4]  # a fifth of every client
    again = from_arrays(images, LABELS, np.arange(COUNT) // 20)
    assert torch.equal(again.test_images, samples.test_images)


def test_a_test_set_of_ones_own_is_kept_as_it_is() -> None:
    samples = from_arrays(PIXELS, LABELS, test_images=PIXELS[:7], test_labels=LABELS[:7])
    assert (len(samples.train_labels), len(samples.test_labels)) == (COUNT, 7)
    assert torch.equal(samples.test_images[:, 0], torch.from_numpy(PIXELS[:7]))


def test_texts_are_numbered_in_their_order() -> None:
    samples = from_arrays(
        PIXELS, np.array(["cat", "ant", "dog"])[LABELS], test_images=PIXELS[:2], test_labels=["dog", "ant"]
    )
    assert samples.train_labels[:3].tolist() == [1, 0, 2]
    assert samples.test_labels.tolist() == [2, 0]


def test_arrays_are_copied() -> None:
    images = RANDOM.random((COUNT, 4)).astype(np.float32)
    samples = from_arrays(images, LABELS)
    kept = samples.train_images.clone()
    images[:] = 0
    assert torch.equal(samples.train_images, kept)


BROKEN = np.full((COUNT, 4), 1.0)
BROKEN[7, 2] = np.nan


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": PIXELS}, "it has no array 'labels'; it has images."),
        ({"images": PIXELS, "labels": LABELS, "labelz": LABELS}, "array 'labelz' is unknown; did you mean labels"),
        ({"images": PIXELS, "labels": LABELS[:-1]}, "labels has 59 entries, but images has 60 samples"),
        ({"images": PIXELS, "labels": LABELS, "clients": LABELS[:-1]}, "clients has 59 entries"),
        (
            {"images": PIXELS, "labels": LABELS + 1},
            "labels are 1..3, but 3 classes must be 0..2: no sample",
        ),
        ({"images": PIXELS, "labels": LABELS * 2}, "no sample has label 1"),
        ({"images": PIXELS, "labels": LABELS - 1}, "labels are -1..1"),
        ({"images": PIXELS, "labels": LABELS * 0}, "labels are all 0, but there must be two classes"),
        ({"images": PIXELS, "labels": LABELS * 1.0}, "labels are float64 numbers, but they must be whole"),
        ({"images": PIXELS, "labels": np.eye(3)[LABELS]}, "labels have shape (60, 3), but there must be one"),
        ({"images": BROKEN, "labels": LABELS}, "values that are no finite 32-bit floats, first in sample 7"),
        ({"images": PIXELS * 1e300, "labels": LABELS}, "no finite 32-bit floats, first in sample 0"),
        ({"images": PIXELS.astype(np.int64) * 9, "labels": LABELS}, "but pixels are 0..255"),
        ({"images": PIXELS.astype(object), "labels": LABELS}, "images holds Python objects"),
        ({"images": PIXELS * 1j, "labels": LABELS}, "images is of type complex128"),
        ({"images": np.full((COUNT, 2), "a"), "labels": LABELS}, "images are texts"),
        ({"images": PIXELS[0, 0], "labels": LABELS}, "images have shape (6,), but they need 2 to 4 dimensions"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, "so there are none"),
        ({"images": np.zeros((COUNT, 8, 8, 9)), "labels": LABELS}, "cannot be told where their channels are"),
        ({"images": np.zeros((COUNT, 3, 8, 3)), "labels": LABELS}, "cannot be told where their channels are"),
        ({"images": [[1.0], [1.0, 2.0]], "labels": LABELS}, "images is no array"),
        ({"images": PIXELS, "labels": LABELS, "test_images": PIXELS}, "test_images and test_labels come together"),
        (
            {"images": PIXELS, "labels": LABELS, "test_images": PIXELS[:, 1:], "test_labels": LABELS},
            "test_images are uint8 of 1x4x6, but images are uint8 of 1x5x6",
        ),
        ({"images": PIXELS[:2], "labels": LABELS[:2]}, "a fifth is set aside for testing: 5 are the least"),
    ],
)
def test_arrays_that_are_no_dataset_are_refused(arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        DATASETS.name_of(arrays)
    assert str(caught.value).startswith("the dataset that was given")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [object(), PIXELS, (PIXELS,), lambda one: None, Path("nowhere.npz"), Path("nowhere")])
def test_what_is_no_dataset_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="the dataset that was given"):
        DATASETS.name_of(given)


def test_equal_arrays_are_one_dataset_and_changed_ones_another() -> None:
    images = PIXELS.copy()
    first = DATASETS.name_of((images, LABELS))
    assert DATASETS.name_of({"images": images.copy(), "labels": LABELS}).rpartition("-")[2] == first.rpartition("-")[2]
    images[0] = 0
    assert DATASETS.name_of((images, LABELS)) != first


def test_a_function_is_called_when_its_dataset_is_needed() -> None:
    calls = []

    def load() -> Any:
        calls.append(1)
        return PIXELS, LABELS

    name = DATASETS.name_of(load)
    assert not calls
    dataset = load_dataset(name)
    assert (dataset.shape, dataset.classes, calls) == ((1, 5, 6), 3, [1])

    def broken() -> Any:
        raise FileNotFoundError("no disk")

    with pytest.raises(InputError, match=r"cannot be loaded: line [0-9]+ raises FileNotFoundError: no disk"):
        load_dataset(DATASETS.name_of(broken))


def test_samples_and_torch_datasets_are_datasets() -> None:
    plain = from_arrays(PIXELS, LABELS)
    given = load_dataset(DATASETS.name_of(plain))
    assert torch.equal(given.train_images, plain.train_images)
    items = torch.utils.data.TensorDataset(torch.from_numpy(PIXELS / 255.0)[:, None], torch.from_numpy(LABELS))
    assert load_dataset(DATASETS.name_of(items)).train_images.dtype == torch.float32
    with pytest.raises(InputError, match="train_images of Samples must be a tensor"):
        DATASETS.name_of(Samples(plain.train_images.double(), *list(vars(plain).values())[1:]))


def test_halves_share_no_natural_client_without_a_test_set_by_client() -> None:
    clients = np.arange(COUNT) // 6
    name = DATASETS.name_of((PIXELS, LABELS, clients))
    name = DATASETS.name_of(
        {"images": PIXELS, "labels": LABELS, "clients": clients, "test_images": PIXELS, "test_labels": LABELS}
    )
    halves = [load_dataset(name, population=one).train_groups for one in ("proxy", "target")]
    assert halves[0] is not None
    assert halves[1] is not None
    assert not set(halves[0].tolist()) & set(halves[1].tolist())


# ---------------------------------------------------------------- files


def test_an_npz_is_a_dataset() -> None:
    np.savez("data.npz", images=PIXELS, labels=LABELS, clients=LABELS)
    dataset = load_dataset("data.npz")
    assert dataset.train_groups is not None
    assert torch.equal(dataset.train_groups, dataset.train_labels)
    assert DATASETS.origin("data.npz").file == "data.npz"
    DATASETS.register("named", "data.npz")
    assert torch.equal(load_dataset("named").train_images, dataset.train_images)
    np.savez("other.npz", images=PIXELS, labels=LABELS)
    DATASETS.find("other.npz")
    np.savez("other.npz", images=PIXELS[:-1], labels=LABELS[:-1])
    with (
        pytest.warns(UserWarning, match="has changed"),
        pytest.raises(InputError, match="has changed since this process"),
    ):
        load_dataset("other.npz")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: None, "dataset 'data.npz': there is no file 'data.npz'"),
        (lambda: Path("data.npz").write_bytes(b"no zip"), "dataset 'data.npz' is no readable .npz file"),
        (lambda: np.savez("data.npz", images=PIXELS), "dataset 'data.npz': it has no array 'labels'"),
        (
            lambda: np.savez("data.npz", images=PIXELS, labels=LABELS.astype(object)),
            "array 'labels' holds Python objects, which are not loaded",
        ),
        (lambda: np.save("data.npz.npy", PIXELS) or Path("data.npz.npy").rename("data.npz"), "no readable .npz file"),
        (lambda: np.savez("data.npz", images=BROKEN, labels=LABELS), "first in sample 7"),
    ],
)
def test_an_npz_that_is_no_dataset_is_refused(write: Any, said: str) -> None:
    write()
    with pytest.raises(InputError) as caught:
        load_dataset("data.npz")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "name", ["~nosuchuser/data", "x" * 5000, "x" * 5000 + ".npz", "x" * 5000 + ".py:load", "\0", " "]
)
def test_a_path_that_cannot_be_one_is_unknown(name: str) -> None:
    with pytest.raises(InputError, match="dataset '"):
        DATASETS.find(name)


def test_an_npz_larger_than_the_memory_is_refused_by_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed("data.npz", images=np.zeros((9000, 64, 64)), labels=np.arange(9000) % 3)
    monkeypatch.setattr("fl_core.data.own_files.free_bytes", lambda device: 2.0**20)
    with pytest.raises(InputError, match=r"unpacks to 0.275 GiB, but 0.000977 GiB of memory are free"):
        load_dataset("data.npz")


def write_folder(table: str, mode: str = "L", size: tuple[int, int] = (7, 6)) -> None:
    folder = Path("pictures")
    folder.mkdir(exist_ok=True)
    for index in range(10):
        color = 10 * index if mode == "L" else (10 * index, 0, index)
        Image.new(mode, size, color).save(folder / f"{index}.png")
    (folder / "labels.csv").write_text(table)


ROWS = [f"{index}.png,{'ab'[index % 2]}" for index in range(10)]


def test_a_folder_of_images_with_labels_is_a_dataset() -> None:
    write_folder("file,label\n" + "\n".join(ROWS))
    grey = load_dataset("pictures")
    assert (grey.shape, grey.classes) == ((1, 6, 7), 2)
    values = [*grey.train_images[:, 0, 0, 0].tolist(), *grey.test_images[:, 0, 0, 0].tolist()]
    labels = [*grey.train_labels.tolist(), *grey.test_labels.tolist()]
    assert {value // 10 % 2 == label for value, label in zip(values, labels, strict=True)} == {True}
    assert sorted(values) == [10 * index for index in range(10)]


def test_colour_clients_and_test_images_come_from_the_table() -> None:
    rows = [f"{row},c{index % 3},{'test' if index > 7 else 'train'}" for index, row in enumerate(ROWS)]
    write_folder("file,label,client,part\n" + "\n".join(rows), "RGB")
    dataset = load_dataset("pictures/")
    assert dataset.shape == (3, 6, 7)
    assert dataset.test_images[:, :, 0, 0].tolist() == [[80, 0, 8], [90, 0, 9]]
    assert dataset.test_groups is not None
    assert dataset.test_groups.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, "is a folder without labels.csv"),
        ("", "has no column 'file'"),
        ("file,labl\n0.png,a", "column of labels.csv 'labl' is unknown; did you mean label"),
        ("file,label\n", "names no image"),
        ("file,label\n0.png", "line 2 of labels.csv does not fill its 2 columns"),
        ("file,label\n0.png,a,b", "line 2 of labels.csv does not fill its 2 columns"),
        ("file,label\nnone.png,a", "image 'none.png' cannot be read"),
        ("file,label\n../secret.png,a", "image '../secret.png' lies outside of the folder"),
        ("file,label\nlabels.csv,a", "image 'labels.csv' cannot be read"),
        ("file,label,part\n0.png,a,both", "has part 'both', not train or test"),
        ("file,label\n0.png,a\nlarge.png,b", "image 'large.png' has (9, 9) pixels, but '0.png' has (7, 6)"),
    ],
)
def test_a_folder_that_is_no_dataset_is_refused(table: str | None, said: str) -> None:
    write_folder(table or "")
    Image.new("L", (9, 9)).save("pictures/large.png")
    if table is None:
        Path("pictures/labels.csv").unlink()
    with pytest.raises(InputError) as caught:
        load_dataset("pictures")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
