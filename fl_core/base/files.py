"""Reading and writing of files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import hashlib
import json
import math
import numbers
import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError

NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""Spelling in JSON -> the float it stands for."""


def spelled_out(value: Any) -> Any:
    """Convert a value to what strict JSON can hold, at any depth.

    JSON has no infinity and no NaN: they become the texts "inf", "-inf" and "nan", which `json_number` decodes.
    Mappings become objects, dataclasses too; lists and tuples become lists, NumPy's numbers Python's.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: spelled_out(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: spelled_out(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled_out(one) for one in value]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if math.isfinite(value) else str(float(value))


def json_number(value: Any) -> Any:
    """Decode a number that `spelled_out` wrote, as a float; anything that is no number is returned as it is."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value


def digest(content: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys; it gives away edits and damage, not a forger.

    Raises:
        ValueError: it holds a number that is not finite.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file such that no reader, and no crash, meets half of it.

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
    """Write UTF-8 text as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with a final newline; NaN and infinity are refused (see `spelled_out`)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file into Python values.

    Raises:
        InputError: the file is missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The file '{path}' could not be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"The file '{path}' is not valid JSON: {error}.") from error
