"""Folders of results, runs/<task>__<controller>__<seed>__<time>/, and the YAML and CSV files in them."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_core.base.errors import InputError
from fl_core.base.files import write_text


def make_run_folder(root: Path, task: str, controller: str, seed: int) -> Path:
    """Make a new folder for one run.

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
    writer.writerows(rows)
    return text.getvalue()


def _yaml_value(value: Any) -> Any:
    """Convert dataclasses, paths and tuples to what YAML knows."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _yaml_value(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_yaml_value(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
