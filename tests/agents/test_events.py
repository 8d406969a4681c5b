"""Failed writes of TensorBoard's threads reach the writer's caller alone; other threads' failures are shown."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

from agents.events import named_failures, open_events
from fl_core.base.errors import FileError


def test_a_full_disk_is_told_once_by_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RecordWriter, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    writer = open_events(tmp_path)
    monkeypatch.setattr(RecordWriter, "write", full)
    sentence = f"written to '{tmp_path}': No space left on device"
    with pytest.raises(FileError, match=sentence) as found, named_failures(tmp_path):  # noqa: PT012
        writer.add_scalar("loss", 1.0, 1)
        writer.flush()
    assert isinstance(found.value.__cause__, OSError)
    assert shown == []

    def break_off() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    other = threading.Thread(target=break_off)
    other.start()
    other.join()
    assert [one.exc_type for one in shown] == [OSError]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(FileError, match="TensorBoard events cannot be written to"):
        open_events(tmp_path / "file" / "run")
