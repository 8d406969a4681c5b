"""Tensors as safetensors and everything else as JSON, with checksums; nothing here can run code when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fl_core.base.errors import InputError, require
from fl_core.base.files import read_json, write_bytes

Tensors = dict[str, Tensor]
DIGEST = "digest"


def dpilot_version() -> str:
    """Version of the installed distribution."""
    return version("dpilot")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to a safetensors file, whole or not at all; returns the file's SHA-256.

    Raises:
        InputError: the file cannot be written.
    """
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    content = safetensors.torch.save(plain)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def read_tensors(path: Path, checksum: str, finite: bool = True) -> Tensors:
    """Tensors of a safetensors file.

    Args:
        path: the file.
        checksum: its SHA-256.
        finite: whether all values must be finite.

    Raises:
        InputError: the file is missing, is not the one that the checksum belongs to, or holds a value that is not
            finite.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"The file '{path}' could not be read: {error.strerror or error}.") from error
    require(
        hashlib.sha256(content).hexdigest() == checksum,
        f"The file '{path}' is damaged or was exchanged: its SHA-256 is not the recorded one.",
    )
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"The file '{path}' is not a safetensors file: {error}.") from error
    for name, value in tensors.items():
        whole = not finite or bool(torch.isfinite(value).all())
        require(whole, f"The file '{path}' holds values that are not finite, in '{name}'.")
    return tensors


def digest_of(record: Mapping[str, Any]) -> str:
    """SHA-256 over a record's values, whatever the file's layout; the digest itself is left out.

    Raises:
        ValueError: it holds a number that is not finite.
    """
    content = {name: value for name, value in record.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def sealed(record: Mapping[str, Any], file_format: int) -> dict[str, Any]:
    """The record with its format, the version that wrote it, and a digest over all of it."""
    whole = {"format": file_format, "dpilot": dpilot_version(), **record}
    return whole | {DIGEST: digest_of(whole)}


def read_sealed(path: Path, file_format: int) -> dict[str, Any]:
    """A record that `sealed` made.

    Raises:
        InputError: it is missing, unreadable, of another version, or was changed since it was written.
    """
    content = read_json(path)
    require(isinstance(content, dict), f"The file '{path}' does not hold a record.")
    record: dict[str, Any] = content
    found = record.get("format")
    require(
        found == file_format and not isinstance(found, bool),
        f"The file '{path}' has format {found}, but this version of dpilot reads format {file_format}.",
    )
    try:
        intact = digest_of(record) == record.get(DIGEST)
    except ValueError:
        intact = False
    require(intact, f"The file '{path}' was changed since it was written: its digest does not fit.")
    written, here = str(record.get("dpilot")), dpilot_version()
    require(
        written.split(".")[:2] == here.split(".")[:2],
        f"The file '{path}' was written by dpilot {written}, but this is dpilot {here}.",
    )
    return record


def json_scalars(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those left to their default, infinity spelled out, so that they can be written as JSON.

    Raises:
        InputError: a value is no JSON scalar.
    """
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        require(isinstance(value, (str, int, float)), f"{name} is {value!r}, but it must be a text or a number.")
        plain[name] = str(value) if isinstance(value, float) and value - value != 0 else value
    return plain
