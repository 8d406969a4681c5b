import os

import pytest

from fl_core.base.errors import InputError, require_count, require_positive, unknown_name
from fl_core.base.files import read_json, write_json, write_text


def test_a_file_is_written_whole(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"x": [1, 2.5]})
    assert read_json(tmp_path / "deep" / "a.json") == {"x": [1, 2.5]}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="could not be written: No space left"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def test_unreadable_files_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match="could not be read"):
        read_json(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(tmp_path / "bad.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(tmp_path / "binary.json")


def test_unknown_names_are_met_with_near_ones():
    assert str(unknown_name("method", "fedvag", ["fedavg", "random"])).endswith(
        "did you mean fedavg; known are fedavg, random."
    )
    assert "known are a, b" in str(unknown_name("method", "zzz", ["b", "a"]))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_only_finite_numbers_above_zero_are_positive(value):
    with pytest.raises(InputError):
        require_positive("x", value)


@pytest.mark.parametrize("value", [0, 1.0, True, "2", None])
def test_only_whole_numbers_are_counts(value):
    with pytest.raises(InputError):
        require_count("x", value)
