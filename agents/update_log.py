"""`updates.jsonl` of a training: a line for each update, appended and never rewritten, so that none costs more."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_core.base.errors import FileError, InputError, require

FILE = "updates.jsonl"


class UpdateLog:
    """Lines that are on disk, of which a checkpoint names the number and the SHA-256.

    Attributes:
        lines: number of lines that belong to the last checkpoint, or will belong to the next.
    """

    def __init__(self, folder: Path) -> None:
        """Begin the log of a folder; whatever stands in it is overwritten."""
        self._path = folder / FILE
        self.lines, self._size, self._hash = 0, 0, hashlib.sha256()

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a line for each row, after those written so far, and wait until they are on disk.

        Raises:
            FileError: they cannot be written; the lines before stay.
        """
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
                file.truncate(self._size)  # what was written after the checkpoint that a training goes on from
                file.seek(self._size)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(f"The file '{self._path}' could not be written: {error.strerror or error}.") from error
        self.lines, self._size = self.lines + len(rows), self._size + len(text)
        self._hash.update(text)

    def seal(self) -> dict[str, Any]:
        """Return number of lines, bytes and SHA-256, for `read`."""
        return {"lines": self.lines, "bytes": self._size, "sha256": self._hash.hexdigest()}

    def read(self, seal: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Read the rows that a checkpoint has sealed, and go on after them.

        Raises:
            InputError: the file is missing, or its lines are not those.
        """
        try:
            content = self._path.read_bytes()[: seal["bytes"]]
        except OSError as error:
            raise InputError(f"The file '{self._path}' could not be read: {error.strerror or error}.") from error
        self._hash = hashlib.sha256(content)
        self._size, self.lines = len(content), content.count(b"\n")
        require(self.seal() == dict(seal), f"The file '{self._path}' is damaged or was exchanged: it does not fit.")
        return [json.loads(line) for line in content.splitlines()]
