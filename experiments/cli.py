"""The command `dpilot`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, TextIO

from agents.loggers import logging_to
from experiments.commands.catalog import COMMANDS
from experiments.commands.interruptions import exit_status, notes, stopped_by_signals, told
from experiments.commands.options import Invocation, last_value, parse, with_config
from experiments.terminal import prepare_streams, shortage
from fl_core.base.catalogue import forget_read_files
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.files import spelled_out
from fl_core.base.text import printable

USAGE_ERROR = 2
SHORTAGE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    The exit status is 0, 2 for anything the user can mend, 1 where the machine has too little of something, 128 and its
    number for a signal.
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
        print(f"dpilot {version('dpilot')}")
        return
    name, rest = arguments[0], arguments[1:]
    require_name("command", name, COMMANDS)
    import torch

    torch.set_num_threads(1)  # two threads beside a busy core run far slower than one; parallelism is by processes
    forget_read_files()
    cls = COMMANDS[name].load()
    rest = with_config(name, cls, rest, partial(_bare_options, name, cls))
    invocation = parse(name, cls, rest, _defaults(cls, rest))
    with logging_to(*invocation.loggers), _streams(invocation):
        result = invocation.command.execute()
    if invocation.json:
        print(json.dumps(spelled_out(result), allow_nan=False, default=str))


def _has_federation(cls: type[Any]) -> bool:
    return "federation" in {one.name for one in dataclasses.fields(cls)}


def _bare_options(name: str, cls: type[Any], arguments: Sequence[str]) -> list[str]:
    """Convert `--agent.NAME` and `--federation.NAME`, and refuse names that could be either's."""
    if not _has_federation(cls):
        return [*arguments]
    from experiments.commands.owners import bare_options  # it needs the agents, which other commands do without

    return bare_options(name, cls, arguments)


@contextlib.contextmanager
def _streams(invocation: Invocation) -> Iterator[None]:
    """Silence a command, or keep standard output free for its result."""
    with contextlib.ExitStack() as stack:
        if invocation.quiet:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        elif invocation.json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _defaults(command: type[Any], arguments: list[str]) -> Any:
    """Make a command's defaults: those of the task that the arguments name; None for a command without a federation."""
    # Imported late: a mistyped command should not wait for torch.
    from envs.tasks import find_task

    if not _has_federation(command):
        return None
    return command(federation=find_task(last_value(arguments, "task") or "digits").federation)


if __name__ == "__main__":
    sys.exit(main())
