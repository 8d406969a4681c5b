"""Interruptions of a command: signals that stop it, and the sentence that says what is kept and what to type."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from experiments.terminal import JobsFailed
from fl_core.base.errors import FileError

_SIGNALS = ("SIGTERM", "SIGHUP")


class Stop(KeyboardInterrupt):
    """An interruption by a signal other than that of Ctrl-C, with its number."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP interrupt the main thread as Ctrl-C does; what is ignored, as by nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    usual = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        for one in usual:
            signal.signal(one, signal.SIG_IGN)  # a second one must not disturb what the first has caused to be written
        raise Stop(number)

    for number in usual:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def resumable(command: str, folder: Path, kept: Callable[[], str], options: Sequence[str] = ()) -> Iterator[None]:
    """Add to what stops the work in a folder, an interruption, a full disk or memory, what is kept and how to go on.

    Args:
        command: that goes on with `--resume FOLDER`.
        folder: of the results.
        kept: describes what lies there at that moment.
        options: to be typed beside the folder.
    """
    try:
        yield
    except (KeyboardInterrupt, FileError, OSError, MemoryError, JobsFailed) as error:
        words = ["dpilot", command, "--resume", str(folder), *options]
        error.add_note(f"'{folder}' holds {kept()}; to go on: {shlex.join(words)}")
        raise


def counted(count: int, what: str) -> str:
    """Count things: `1 finished part of the search`, `2 finished parts of the search`."""
    name, of, rest = what.partition(" of ")
    return f"{count} {name}{'s' * (count != 1)}{of}{rest}"


def exit_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status of an interrupted program, 128 and the number of the signal."""
    return 128 + (stop.number if isinstance(stop, Stop) else signal.SIGINT)


def told(stop: KeyboardInterrupt) -> str:
    """Tell an interruption in a sentence."""
    by = f" by {signal.Signals(stop.number).name}" if isinstance(stop, Stop) else ""
    return f"interrupted{by}; {notes(stop) or 'nothing is kept yet, so give the same command again'}"


def notes(error: BaseException) -> str:
    """Join the notes that an error has collected on its way."""
    return "; ".join(getattr(error, "__notes__", ()))
