"""The command `dpilot`."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, TextIO

from experiments.commands.catalog import COMMANDS
from experiments.commands.interruptions import exit_status, notes, stopped_by_signals, told
from experiments.loading import uncollected
from experiments.terminal import JobsFailed, prepare_streams, shortage
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.libraries import metadata
from fl_core.base.text import printable

USAGE_ERROR = 2
SHORTAGE = JOBS_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    The exit status is 0, 2 for anything the user can mend, 1 where the machine has too little of something
    or jobs of a sweep failed, 128 and its number for a signal.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    prepare_streams()
    warnings.showwarning = partial(_show_warning, sys.stderr)
    try:
        _check_text(arguments)
        with stopped_by_signals():
            _dispatch(arguments)
    except InputError as error:
        return _complain(str(error), error)
    except JobsFailed as error:
        return _complain(str(error), error, JOBS_FAILED)
    except KeyboardInterrupt as stop:
        print(f"dpilot: {told(stop)}", file=sys.stderr)
        return exit_status(stop)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(
            printable(f"{error.filename or 'A file'} could not be used: {error.strerror or error}."), error
        )
    except (ArithmeticError, ImportError, MemoryError, RuntimeError) as error:
        lack = shortage(error)
        if lack is None:
            raise
        return _complain(lack, error, SHORTAGE)
    return 0


def _complain(sentence: str, error: Exception, status: int = USAGE_ERROR) -> int:
    more = notes(error)
    with contextlib.suppress(OSError):  # standard error may lie on the full disk itself
        print(f"dpilot: {sentence.rstrip('.')}; {more}" if more else f"dpilot: {sentence}", file=sys.stderr)
    return status


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that are no text: they would be refused again by every file that they are written to.

    Raises:
        InputError: one of them is not valid in the encoding of the system.
    """
    for argument in arguments:
        fits = "\0" not in argument and not any("\ud800" <= letter <= "\udfff" for letter in argument)
        require(fits, f"The argument '{argument}' is no valid text; write it in UTF-8.")


def _show_warning(stream: TextIO, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        print(f"dpilot: warning: {message}", file=stream)


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}  {entry.summary}" for name, entry in COMMANDS.items()]
        print("usage: dpilot COMMAND [OPTIONS]", *lines, "`dpilot COMMAND --help` explains each option.", sep="\n")
        return
    if arguments[0] == "--version":
        print(f"dpilot {metadata.version('dpilot')}")
        return
    name, rest = arguments[0], arguments[1:]
    require_name("command", name, COMMANDS)
    with uncollected():
        from experiments.commands.execution import execute

    execute(name, rest)


if __name__ == "__main__":
    sys.exit(main())
