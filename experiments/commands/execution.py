"""Execution of a command that was named: its options parsed, its streams set, its result printed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from agents.loggers import logging_to
from experiments.commands.catalog import COMMANDS
from experiments.commands.options import Invocation, last_value, parse, with_config
from experiments.loading import require_room_for_libraries, uncollected
from fl_core.base.catalogue import forget_read_files
from fl_core.base.errors import InputError
from fl_core.base.files import spelled_out
from fl_core.base.libraries import torch


def execute(name: str, arguments: Sequence[str]) -> None:
    """Parse the options of a command and run it.

    Args:
        name: of the command, one of `COMMANDS`.
        arguments: what was typed after the name.

    Raises:
        InputError: the options do not fit.
    """
    forget_read_files()
    entry = COMMANDS[name]
    with uncollected():
        cls = entry.load_options()
        given = with_config(name, cls, arguments, partial(_bare_options, name, cls))
        with _options_of(last_value(arguments, "config")):
            invocation = parse(name, cls, given, _defaults(cls, given))
    with logging_to(*invocation.loggers), _streams(invocation):
        overview = getattr(invocation.command, "overview", "")
        if overview:
            command: Any = COMMANDS["list"].load()(overview)
        else:
            command = _computing(name, invocation.command) if entry.options else invocation.command
        result = command.execute()
    if invocation.json:
        print(json.dumps(spelled_out(result), allow_nan=False, default=str))


@contextlib.contextmanager
def _options_of(file: str | None) -> Iterator[None]:
    """Have refusals of options name the file, if any, that some of them come from."""
    try:
        yield
    except InputError as error:
        if file is not None:
            error.add_note(f"options of the file '{file}' are among them.")
        raise


def _computing(name: str, options: Any) -> Any:
    """Check a command's options, and only then load what it computes with."""
    with uncollected():
        options.check()
        require_room_for_libraries(name)
        torch.set_num_threads(1)  # two threads beside a busy core run far slower than one; parallelism is by processes
        command = COMMANDS[name].load()
    return command(**vars(options))


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
    if not _has_federation(command):
        return None
    from envs.tasks import find_task  # commands without a federation do without its settings

    return command(federation=find_task(last_value(arguments, "task") or "digits").federation)
