"""Files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError


def spelled_out(value: Any) -> Any:
    """A value for strict JSON: floats that are not finite as words, tuples as lists, at any depth."""
    if isinstance(value, Mapping):
        return {name: spelled_out(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled_out(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never meets half of it.

    Raises:
        InputError: the file cannot be written (no room, no permission, no such folder).
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise InputError(f"The file '{path}' could not be written: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for UTF-8 text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """`write_text` for JSON, indented and with a final newline; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The file '{path}' could not be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"The file '{path}' is not valid JSON: {error}.") from error
