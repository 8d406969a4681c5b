"""Event files of TensorBoard, whose failures reach whoever writes as one sentence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fl_core.base.errors import FileError


def open_events(folder: Path, resumed_at: int | None = None) -> SummaryWriter:
    """Open a new event file in a folder; write to it inside `named_failures`.

    Args:
        folder: of the run; TensorBoard shows its path below `--logdir` as the run's name.
        resumed_at: step from which TensorBoard hides what an interrupted run wrote; None for a new run.

    Raises:
        FileError: the folder cannot be written.
    """
    _silence_threads()
    with named_failures(folder):
        return SummaryWriter(str(folder), purge_step=resumed_at)


@contextmanager
def named_failures(folder: Path) -> Iterator[None]:
    """Raise what the system refuses while events are written as an error that names the folder.

    Raises:
        FileError: events could not be written.
    """
    try:
        yield
    except OSError as error:
        raise FileError(f"TensorBoard events cannot be written to '{folder}': {error.strerror or error}.") from error


def _silence_threads() -> None:
    """Keep threads that write events from printing a traceback: each hands its error to the next call of its writer."""
    shown = threading.excepthook
    if not isinstance(shown, _ShownExceptOfWriters):
        threading.excepthook = _ShownExceptOfWriters(shown)


class _ShownExceptOfWriters:
    """A hook for exceptions that end threads: another hook, left out for failed writes of TensorBoard's threads."""

    def __init__(self, others: Callable[[threading.ExceptHookArgs], object]):
        self._others = others

    def __call__(self, ended: threading.ExceptHookArgs) -> None:
        """Show an exception, unless it is one that the writer raises again."""
        is_writer = type(ended.thread).__module__.startswith("tensorboard.")
        if not (is_writer and issubclass(ended.exc_type, OSError)):
            self._others(ended)
