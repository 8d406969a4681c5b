"""A job on its way to a worker and back: what is sent, what the worker does, and the outcome that it returns."""

from __future__ import annotations

import io
import os
import pickle
import platform
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from envs.playing import RowProgress
from experiments.records.order import FILE as ORDER
from experiments.terminal import shortage
from fl_core.base.errors import FileError, InputError, first_line, require
from fl_core.base.handover import pack_parts, unpack_parts
from fl_core.base.sources import file_modules
from fl_core.base.text import sentence
from fl_core.training.measured import adopt_choices, executor_choices

Call = Callable[[RowProgress], dict[str, Any]]
"""Does a job: told whom to tell of rounds, returns JSON values."""

_ONE_AT_A_TIME = threading.Lock()
"""Held during a job: a worker with several threads does one job after the other."""
_stale: list[Callable[[], object]] = []


@dataclass
class Outcome:
    """Outcome of a job.

    Attributes:
        results: JSON values; None where it failed.
        failure: sentence that says why it failed.
        disk: error of a file that could not be written, which other jobs would meet too.
        rounds, seconds: that it took.
        executors: those that were measured to be the faster, there.
        printed: what it printed.
        warned: its warnings.
    """

    results: dict[str, Any] | None = None
    failure: str = ""
    disk: OSError | FileError | None = None
    rounds: int = 0
    seconds: float = 0.0
    executors: dict[str, tuple[str, str]] = field(default_factory=dict)
    printed: str = ""
    warned: list[str] = field(default_factory=list)


def forgets_when_stale(forget: Callable[[], object]) -> None:
    """Register what drops this process's environments, when it is told to take other executors than it measured."""
    _stale.append(forget)


def packed(call: Call) -> bytes:
    """Pack a call with the parts that are registered here, and with the executors that are chosen here.

    Classes and functions of users' files go along by value: a worker cannot import them.
    """
    for module in file_modules():
        cloudpickle.register_pickle_by_value(module)
    return bytes(cloudpickle.dumps((os.getcwd(), pack_parts(), executor_choices(), cloudpickle.dumps(call))))


def serve(content: bytes) -> Outcome:
    """Do a packed job in a worker, with one thread; whatever happens in it is told in the outcome."""
    with _ONE_AT_A_TIME, ExitStack() as stack:
        printed = stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))  # its progress bars; warnings are caught
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("default")
        outcome, began = Outcome(), time.monotonic()

        def advance(rounds: int) -> None:
            outcome.rounds += rounds

        try:
            outcome.results = _called(content)(advance)
        except (FileError, OSError) as error:
            outcome.disk = error
        except Exception as error:
            outcome.failure = told_failure(error)
        outcome.seconds, outcome.executors = time.monotonic() - began, executor_choices()
        outcome.printed = printed.getvalue()
        outcome.warned = [str(one.message) for one in caught if issubclass(one.category, UserWarning)]
        return outcome


def _called(content: bytes) -> Call:
    """Unpack a call, after the parts that it may need."""
    torch.set_num_threads(1)  # several threads per worker on cores that all have one are many times slower
    folder, parts, choices, call = pickle.loads(content)
    with suppress(OSError):  # a node that does not share it may do without, if no path is relative to it
        os.chdir(folder)
    unpack_parts(parts)
    if adopt_choices(choices, over_own=True):
        for forget in _stale:
            forget()
    found: Call = pickle.loads(call)
    return found


def told_failure(error: Exception) -> str:
    """Tell the error of a job in a sentence."""
    if isinstance(error, InputError):
        return str(error)
    known = f"{type(error).__name__}: {first_line(error)}; without --jobs and --backend, the whole traceback is shown."
    return sentence(shortage(error) or known)


def in_shared_folder(folder: Path, call: Call, progress: RowProgress) -> dict[str, Any]:
    """Do a job that writes into a folder of results, which must be the same wherever the worker runs.

    Raises:
        InputError: the worker does not see the folder.
    """
    require(
        (folder / ORDER).is_file(),
        f"The folder '{folder}' is not there on node {platform.node()}; put --runs on storage that all nodes share.",
    )
    return call(progress)
