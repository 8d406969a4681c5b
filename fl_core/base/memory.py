"""Memory that this process may still take, as far as the system tells."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path

from fl_core.base.libraries import torch

_CGROUP = Path("/sys/fs/cgroup")
ON_CPU = 192 * 2**20
"""Bytes that stacked clients take on a CPU: six tensors of the models' size, each of which glibc still keeps when it is
freed, up to 32 MiB. Larger ones are mapped anew by every operation, and their page faults make rows dearer."""
_REFUSALS = re.compile(r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error by which Python, or torch on any device, says that memory does not suffice."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_REFUSALS.search(str(error))))


def free_bytes(device: torch.device) -> float:
    """Estimate the bytes that tensors on a device may still take; infinity where the system does not tell."""
    if device.type == "cpu":
        return min(_of_machine(), _of_group(), _of_process())
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + kept)


def stacking_bytes(device: torch.device) -> int:
    """Choose the bytes that stacked clients may take where nobody sets a limit.

    The numbers of clients that are stacked follow from it and from shapes alone, never from a clock: on some processors
    they change the last bits. On a GPU it is half of what is free, rounded down to a power of two: what others take in
    passing must not change the sizes that programs are made for.
    """
    if device.type == "cpu":
        return ON_CPU
    return 1 << max(20, int(free_bytes(device) / 2).bit_length() - 1)


def _of_machine() -> float:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return math.inf


def _of_group() -> float:
    """Free bytes of the control group that a container is limited by."""
    with contextlib.suppress(OSError, ValueError):
        most = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        return float(max(0, most - int((_CGROUP / "memory.current").read_text(encoding="ascii"))))
    return math.inf


def _of_process() -> float:
    """Free bytes of the address space that `ulimit -v` leaves this process."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            return float(max(0, limit - pages * resource.getpagesize()))
    return math.inf
