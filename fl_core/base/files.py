"""Reading and writing of files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import numbers
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fl_core.base.errors import FileError, InputError, require
from fl_core.base.text import is_printable, short

NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""Spelling in JSON -> the float it stands for."""
MOST_BYTES = 1 << 28
"""Bytes of a record; longer files are not read."""
DEEPEST = 64
"""Levels of nesting of a record."""
LARGEST_INTEGER = 1 << 64
"""Whole numbers of a record are below it."""


def spelled_out(value: Any) -> Any:
    """Convert a value to what strict JSON can hold, at any depth.

    JSON has no infinity and no NaN: they become the texts "inf", "-inf" and "nan", which `json_number` decodes.
    Mappings become objects, dataclasses too; lists and tuples become lists, NumPy's numbers Python's.
    """
    if type(value) is float:  # most values are
        return value if math.isfinite(value) else str(value)
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


_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")
"""Name of a file or folder that is being written, with the number of the process that writes it."""


def write_bytes(path: Path, content: bytes, mode: int = 0o666, wait: bool = True) -> None:
    """Write a file such that no reader, and no crash, meets half of it.

    Args:
        path: the file; folders that are missing are made.
        content: all of it.
        mode: permissions, of which the user's umask takes its part.
        wait: False leaves it to the system when the disk gets it: a process that is killed loses nothing, but a machine
            without power may.

    Raises:
        FileError: the file cannot be written (no room, no permission, no such folder).
    """
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            if wait:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise FileError(f"The file '{path}' could not be written: {error.strerror or error}.") from error


def temporary_name(path: Path) -> Path:
    """Name what this process writes before it is renamed to `path`, such that `drop_leftovers` knows it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def drop_leftovers(folder: Path) -> None:
    """Remove what killed processes were writing in a folder and below, under temporary names."""
    for path in list(folder.rglob(".*.tmp")):
        found = _TEMPORARY.fullmatch(path.name)
        if found and not _is_alive(int(found[1])):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Return False if no process has the number; where the system cannot tell, it is taken to live."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's, or no number of a process
        return True
    return True


def write_text(path: Path, text: str, mode: int = 0o666, wait: bool = True) -> None:
    """Write UTF-8 text as `write_bytes` does."""
    write_bytes(path, text.encode(), mode, wait)


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    """Write a value as indented JSON with a final newline; NaN and infinity are refused (see `spelled_out`)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", mode)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a file.

    Args:
        path: the file.
        most: bytes that it may have; None for no limit.

    Raises:
        InputError: it is missing, cannot be read or is longer.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise InputError(f"The file '{path}' has {size:,} bytes, but {most:,} are the most that are read.")
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError(f"The file '{path}' could not be read: {reason or error}.") from error


def read_json(path: Path) -> Any:
    """Read a JSON file into Python values, whoever wrote it; see `parse_json`.

    Raises:
        InputError: the file is missing, unreadable or longer than `MOST_BYTES`, or `parse_json` refuses it.
    """
    return parse_json(read_bytes(path, MOST_BYTES), f"The file '{path}'")


def parse_json(content: bytes | str, what: str, records: bool = True) -> Any:
    """Parse JSON into Python values that everything else can work with.

    Args:
        content: the JSON, in UTF-8.
        what: for messages: "The file 'x'".
        records: False for bulk data, whose values are checked by whoever takes them.

    Raises:
        InputError: it is not strict JSON, names a field twice, is nested deeper than `DEEPEST`, or holds a number or a
            text that no record has: one beyond 64 bits, or with control characters.
    """
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(text, parse_constant=_no_constant if records else None, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{what} is not valid JSON: {reason}.") from error
    if records:
        check_values(value, what)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its entries; two of one name would be read differently by different readers."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {short(next(name for name in names if names.count(name) > 1))} stands twice in it")
    return found


def check_values(value: Any, what: str, finite: bool = True) -> None:
    """Refuse values that no record holds, level by level, so that no nesting is too deep for the check itself.

    Args:
        value: nested lists and mappings of texts and numbers.
        what: for messages: "The file 'x'".
        finite: whether all numbers must be finite.

    Raises:
        InputError: as in `parse_json`.
    """
    level, depth = [value], 0
    while level:
        depth += 1
        require(depth <= DEEPEST, f"{what} is nested more than {DEEPEST} levels deep, so it is no record.")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str):
                require(is_printable(one), f"{what} holds the text {short(one)}, with characters that cannot be shown.")
            elif isinstance(one, (int, float)):
                fits = abs(one) < LARGEST_INTEGER if isinstance(one, int) else math.isfinite(one) or not finite
                require(fits, f"{what} holds the number {short(one)}, which is beyond 64 bits.")
        level = inner
