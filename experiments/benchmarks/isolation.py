"""A fresh process for each measurement, so that no case runs in the memory that another has left."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch

from fl_core.training.memory import keep_freed_memory

Result = TypeVar("Result")


def _prepare() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a process of its own, with one thread, and return its result."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_prepare) as pool:
        return pool.submit(function, *arguments).result()
