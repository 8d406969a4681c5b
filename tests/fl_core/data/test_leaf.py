from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_core.base.errors import InputError
from fl_core.data.datasets import dataset_available, load_dataset
from tests.fl_core.data.writers import leaf_content, random_arrays, write_leaf

WRITERS = {name: random_arrays(count, 62, (28, 28), seed=count) for name, count in (("f2", 5), ("f0", 3), ("f1", 4))}
TEST_WRITERS = {"f0": random_arrays(2, 62, (28, 28), seed=9)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two training files and a test file."""
    first = {name: WRITERS[name] for name in ("f2", "f0")}
    write_leaf(tmp_path / "femnist/train/all_data_0.json", leaf_content(first))
    write_leaf(tmp_path / "femnist/train/all_data_1.json", leaf_content({"f1": WRITERS["f1"]}))
    write_leaf(tmp_path / "femnist/test/all_data_0.json", leaf_content(TEST_WRITERS))
    return tmp_path


def test_writers_are_groups_in_alphabetical_order(root: Path) -> None:
    assert dataset_available("femnist", root)
    data = load_dataset("femnist", root)
    assert data.train_groups is not None
    assert data.train_groups.tolist() == [0] * 3 + [1] * 4 + [2] * 5
    for group, name in enumerate(sorted(WRITERS)):
        rows = data.train_groups == group
        assert np.array_equal(data.train_images[rows, 0].numpy(), WRITERS[name][0])
        assert data.train_labels[rows].tolist() == WRITERS[name][1].tolist()
    assert np.array_equal(data.test_images[:, 0].numpy(), TEST_WRITERS["f0"][0])
    assert data.test_groups is not None
    assert data.test_groups.tolist() == [0] * 2
    assert (data.classes, data.shape) == (62, (1, 28, 28))


def test_grey_values_are_rounded_to_the_nearest(root: Path) -> None:
    content = leaf_content(TEST_WRITERS)
    rows = content["user_data"]["f0"]["x"]
    content["user_data"]["f0"]["x"] = np.round(rows, 4).tolist()
    write_leaf(root / "femnist/test/all_data_0.json", content)
    assert np.array_equal(load_dataset("femnist", root).test_images[:, 0].numpy(), TEST_WRITERS["f0"][0])


def test_writer_without_samples_is_allowed(root: Path) -> None:
    content = leaf_content({"f9": random_arrays(2, 62, (28, 28))})
    content["users"].append("g0")
    content["num_samples"].append(0)
    content["user_data"]["g0"] = {"x": [], "y": []}
    write_leaf(root / "femnist/test/more.json", content)
    assert len(load_dataset("femnist", root).test_labels) == 4


def _drop_key(content: dict[str, Any]) -> None:
    del content["num_samples"]


def _wrong_count(content: dict[str, Any]) -> None:
    content["num_samples"][0] += 1


def _short_image(content: dict[str, Any]) -> None:
    content["user_data"]["f1"]["x"][0].pop()


def _bright_pixel(content: dict[str, Any]) -> None:
    content["user_data"]["f1"]["x"][0][5] = 1.5


def _not_a_number(content: dict[str, Any]) -> None:
    content["user_data"]["f1"]["x"][0][5] = float("nan")


def _text_pixels(content: dict[str, Any]) -> None:
    content["user_data"]["f1"]["x"] = [["0.5"] * 784] * 4


def _unknown_class(content: dict[str, Any]) -> None:
    content["user_data"]["f1"]["y"][0] = 62


def _broken_label(content: dict[str, Any]) -> None:
    content["user_data"]["f1"]["y"][0] = 1.5


def _other_user(content: dict[str, Any]) -> None:
    content["users"][0] = "f8"


def _user_of_another_file(content: dict[str, Any]) -> None:
    content["users"][0] = "f0"
    content["user_data"]["f0"] = content["user_data"].pop("f1")


@pytest.mark.parametrize(
    "spoil",
    [
        _drop_key,
        _wrong_count,
        _short_image,
        _bright_pixel,
        _not_a_number,
        _text_pixels,
        _unknown_class,
        _broken_label,
        _other_user,
        _user_of_another_file,
    ],
)
def test_invalid_content_is_refused_naming_the_file(spoil: Callable[[dict[str, Any]], None], root: Path) -> None:
    path = root / "femnist/train/all_data_1.json"
    content = leaf_content({"f1": WRITERS["f1"]})
    spoil(content)
    write_leaf(path, content)
    with pytest.raises(InputError, match=rf"^The file '{path}' cannot be used \([^\n]+\); [^\n]+\.$"):
        load_dataset("femnist", root)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"users": ["f1"'])
def test_damaged_json_is_refused_naming_the_file(text: str, root: Path) -> None:
    path = root / "femnist/test/all_data_0.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"^The file '{path}'"):
        load_dataset("femnist", root)


def test_missing_test_folder_is_a_missing_dataset(root: Path) -> None:
    (root / "femnist/test/all_data_0.json").unlink()
    assert not dataset_available("femnist", root)
    with pytest.raises(InputError, match="TalwalkarLab/leaf"):
        load_dataset("femnist", root)
