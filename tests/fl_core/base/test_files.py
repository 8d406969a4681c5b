import os
import stat
import subprocess

import pytest

from fl_core.base.errors import InputError, require_count, require_positive, unknown_name
from fl_core.base.files import drop_leftovers, read_json, temporary_name, write_bytes, write_json, write_text


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


def test_a_file_has_the_permissions_of_the_users_umask(tmp_path):
    for umask, mode in ((0o027, 0o640), (0o002, 0o664), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            write_text(tmp_path / "a.txt", "x")
            write_bytes(tmp_path / "key", b"x", mode=0o600)
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode
        assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        pass
    (tmp_path / "jobs").mkdir()
    left = [tmp_path / f".a.json.{ended.pid}.tmp", tmp_path / "jobs" / f".b.{ended.pid}.tmp"]
    for path in left:
        path.write_text("half")
    (tmp_path / f".controller.{ended.pid}.tmp").mkdir()
    stays = [temporary_name(tmp_path / "mine"), tmp_path / ".hidden", tmp_path / ".user.tmp", tmp_path / "1.tmp"]
    for path in stays:
        path.write_text("whole")
    drop_leftovers(tmp_path)
    assert sorted(tmp_path.rglob("*")) == sorted([*stays, tmp_path / "jobs"])
