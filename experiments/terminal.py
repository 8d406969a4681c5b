"""The terminal as it is: streams that are closed or know few letters, and one sentence where the machine gives out."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TextIO

from experiments.libraries import consoles
from fl_core.base.text import printable

_LOWER = "lower batch-size, local-steps, clients or memory-limit-mib"
MEMORY = re.compile(
    r"allocat|out of memory|memory|bad_alloc|alloc_cpu|failed to map segment|CUBLAS_STATUS_ALLOC", re.IGNORECASE
)
_THREADS = re.compile(r"can't start new thread|Resource temporarily unavailable", re.IGNORECASE)
_NUMBERS = re.compile(r"overflow|too (large|big)|out of range|cannot be converted", re.IGNORECASE)


class LibrariesDoNotFit(MemoryError):
    """The limit on the address space is too low for the libraries; the message is one sentence."""


class JobsFailed(Exception):
    """Jobs of a sweep failed, while the others were done and kept; the message tells of each."""


def prepare_streams() -> None:
    """Make standard output and error ready for any letter, and open them to nowhere where they are closed.

    A program whose standard error is closed would give its number to the next file that is opened, and write there.
    """
    for number in (1, 2):
        with contextlib.suppress(OSError):
            try:
                os.fstat(number)
            except OSError:
                null = os.open(os.devnull, os.O_WRONLY)
                if null != number:
                    os.dup2(null, number)
                    os.close(null)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, open as long as the program runs
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def shortage(error: BaseException) -> str | None:
    """Write what the machine has too little of as a sentence; None for an error of another kind."""
    said = str(error).strip().splitlines()
    first = printable(said[0]) if said else type(error).__name__
    if isinstance(error, LibrariesDoNotFit):
        return first
    if isinstance(error, ImportError):
        return f"The memory does not suffice to load the libraries ({first})." if MEMORY.search(first) else None
    if isinstance(error, MemoryError) or MEMORY.search(first):
        return f"The memory does not suffice ({first[:200]}); {_LOWER}."
    if _THREADS.search(first):
        return f"The system allows no further thread or process ({first[:200]}); lower jobs, or its other load."
    if isinstance(error, OverflowError) or _NUMBERS.search(first):
        return f"A number became too large to compute with ({first[:200]}); lower the largest of the settings."
    if isinstance(error, RecursionError):
        return "What was read is nested too deep to be worked with."
    return None


def console(width: int, stream: TextIO | None = None) -> consoles.Console:
    """Make a console that prints text as it stands: brackets in a name are no markup.

    Args:
        width: columns where the output is no terminal.
        stream: where it prints; None takes standard output.
    """
    out = stream or sys.stdout
    return consoles.Console(
        file=stream, width=None if out.isatty() else width, highlight=False, markup=False, emoji=False
    )
