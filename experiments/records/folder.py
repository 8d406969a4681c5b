"""Folders of results, runs/<task>__<controller>__<seed>__<time>/, and the YAML and CSV files in them."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_core.base.errors import InputError
from fl_core.base.files import read_json, temporary_name, write_text
from fl_core.base.text import printable
from fl_core.run.budget import UnstatedEpsilon, stated


def make_run_folder(root: Path, task: str, controller: str, seed: int | str) -> Path:
    """Make a new folder for one run, or for runs of several seeds.

    Raises:
        InputError: it cannot be made.
    """
    words = [re.sub(r"[^\w.+-]+", "-", word).strip("-") for word in (task, controller, str(seed))]
    name = "__".join([*words, time.strftime("%Y%m%d-%H%M%S")])
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        folder = root / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"The folder '{folder}' could not be made: {error.strerror or error}.") from error
        return folder
    raise InputError(f"The folder '{root / name}' and its successors are all taken.")


def require_writable(field: str, path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold; leaves nothing.

    Args:
        field: that names the file or its folder, for the message.
        path: of the file.

    Raises:
        InputError: the system does not let it be written.
    """
    made: list[Path] = []
    try:
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = temporary_name(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"{field} is '{path}', but it could not be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()


def says_complete(summary: Path) -> bool:
    """Return True if a summary says that its run or training has ended; False where there is none."""
    if not summary.is_file():
        return False
    found = read_json(summary)
    return isinstance(found, dict) and found.get("status") == "complete"


def write_yaml(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain values, dataclasses and paths as YAML."""
    write_text(path, yaml.safe_dump(_yaml_value(value), sort_keys=False, allow_unicode=True))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a CSV file, see `csv_lines`."""
    write_text(path, csv_lines(rows))


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Convert rows to CSV; the columns are those of any row, in order of appearance."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Make a text one that a spreadsheet shows and does not run, and without letters that a terminal obeys."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


_FORMULA = ("=", "+", "-", "@")
"""Letters that begin a formula in a spreadsheet."""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _yaml_value(value: Any) -> Any:
    """Convert dataclasses, paths and tuples to what YAML knows."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _yaml_value(entry) for name, entry in stated(value).items()}
    if isinstance(value, (list, tuple)):
        return [_yaml_value(entry) for entry in value]
    if isinstance(value, UnstatedEpsilon):
        return float(value)
    return str(value) if isinstance(value, Path) else value
