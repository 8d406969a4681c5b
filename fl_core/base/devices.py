"""Devices by name: which there may be, and which there are on this machine."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress

from fl_core.base.errors import require, require_name
from fl_core.base.libraries import torch

DEVICES = {
    "auto": "the first CUDA device if there is one, otherwise the CPU",
    "cpu": "the CPU",
    "cuda": "the first CUDA device; cuda:1 is the second, and so on",
}
DEVICE_NAMES = (*DEVICES, "cuda:N")
"""The names as help shows them."""


def check_device(device: str) -> None:
    """Refuse a name that is none of `DEVICES` nor one of their numbers, or a device that this machine does not have.

    Raises:
        InputError: one of them.
    """
    numbered = re.fullmatch("cuda:([0-9]{1,4})", device) if isinstance(device, str) else None
    require_name("device", "cuda" if numbered else device, DEVICES)
    if not device.startswith("cuda"):
        return
    count = torch.cuda.device_count() if _has_driver() and torch.cuda.is_available() else 0
    require(count > 0, f"device is '{device}', but this machine has no usable CUDA device; use cpu or auto.")
    last = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
    require(numbered is None or int(numbered[1]) < count, f"device is '{device}', but this machine has {last}.")


def _has_driver() -> bool:
    """Return False where no driver of a GPU is installed, for which torch need not be loaded."""
    if sys.platform != "linux" or "torch" in sys.modules:
        return True  # torch knows
    with suppress(OSError):
        return bool(ctypes.CDLL("libcuda.so.1"))
    return os.path.exists("/dev/kfd")  # AMD's, which torch calls CUDA too


def find_device(device: str) -> torch.device:
    """Return the torch device of a name; `auto` is CUDA if there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)
