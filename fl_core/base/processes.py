"""Processes that start afresh, with what takes long to load loaded once for all of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext

_HEAVY = ["torch._inductor", "sklearn.datasets"]
"""What the first traced program and the digits import: some four seconds in each process that loads it by itself."""


def process_context(module: str) -> BaseContext:
    """Return the context to start processes with; none is a fork of this one, which CUDA and threads do not survive.

    Where the system has a fork server, that loads the libraries once and its children share them. It starts with the
    first process and keeps the environment variables of that moment.

    Args:
        module: what the processes work with, loaded beforehand too.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module, *_HEAVY])
    return context


def follow_parent() -> None:
    """Leave interruptions of the terminal to the parent process, and end this process as soon as that has ended.

    Call it first in a process that `process_context` has started. A parent that is killed cannot end its children; the
    system closes the pipe that each of them waits at.
    """
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):  # there is no SIGHUP on Windows
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "called in a process that no other has started"
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
