"""Setting of the C library that keeps memory mapped between the many short-lived tensors of a round."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt(3)
_KEPT = 1 << 30
_LARGEST_ON_HEAP = 1 << 25  # the most that glibc accepts


@cache
def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory; done once per process, on Linux with glibc.

    By default a tensor above some hundred kilobytes is mapped anew for each operation, and the page faults can take as
    long as the arithmetic. Up to 1 GiB of freed memory stays with the process instead.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library: it works as before
    mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    mallopt(_TRIM_THRESHOLD, _KEPT)
