"""Tensors as safetensors files with checksums; nothing here can run code when it is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from fl_core.base.errors import InputError, require
from fl_core.base.files import write_bytes

Tensors = dict[str, Tensor]


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Content of a safetensors file."""
    return safetensors.torch.save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], mode: int = 0o666) -> str:
    """Write tensors to a safetensors file as `write_bytes` does; returns the file's SHA-256.

    Raises:
        InputError: the file cannot be written.
    """
    content = tensor_bytes(tensors)
    write_bytes(path, content, mode)
    return hashlib.sha256(content).hexdigest()


def read_tensors(path: Path, checksum: str, finite: bool = True) -> Tensors:
    """Read the tensors of a safetensors file.

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
