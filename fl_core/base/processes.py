"""Processes that start afresh, with what takes long to load loaded once for all of them."""

from __future__ import annotations

import multiprocessing
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
