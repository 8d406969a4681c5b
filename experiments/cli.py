"""The command `dpilot`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from fl_core.base.errors import InputError, require_name

USAGE_ERROR = 2

COMMANDS = {
    "demo": "train a clipping controller on real digits and compare it, in minutes",
    "run": "one federated run under one controller",
    "train": "train a controller with one of the learning algorithms (`dpilot list algorithms`)",
    "compare": "controllers on held-out instances at the same epsilon",
    "ledger": "the privacy of a run: what was released, what it cost, and which epsilon holds",
    "audit": "attacks on the real rounds of a method, against what it claims",
    "paper": "a paper's table, run and set beside its printed numbers",
    "list": "what there is to choose from: tasks, methods, controllers, algorithms and the rest",
}


_CLASSES = {
    "demo": "experiments.commands.demo:DemoCommand",
    "run": "experiments.commands.run:RunCommand",
    "train": "experiments.commands.train:TrainCommand",
    "compare": "experiments.commands.compare:CompareCommand",
    "ledger": "experiments.commands.ledger:LedgerCommand",
    "audit": "experiments.commands.audit:AuditCommand",
    "paper": "experiments.commands.paper:PaperCommand",
    "list": "experiments.commands.lists:ListCommand",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 2 for anything the user can mend, 130 for an interruption."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    warnings.showwarning = _show_warning
    try:
        _dispatch(arguments)
    except InputError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print("dpilot: interrupted; finished rounds and checkpoints are in the run's folder.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'A file'} could not be used: {error.strerror or error}.")
    return 0


def _complain(sentence: str) -> int:
    print(f"dpilot: {sentence}", file=sys.stderr)
    return USAGE_ERROR


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        print(f"dpilot: warning: {message}", file=sys.stderr)


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
        print("usage: dpilot COMMAND [OPTIONS]", *lines, "`dpilot COMMAND --help` explains each option.", sep="\n")
        return
    name, rest = arguments[0], arguments[1:]
    require_name("command", name, COMMANDS)
    import torch

    torch.set_num_threads(1)  # two threads beside a busy core run far slower than one; parallelism is by processes
    make, default = _load(name, rest)
    parse_command(make, rest, f"dpilot {name}", default).execute()


def _load(name: str, arguments: list[str]) -> tuple[type[Any], Any]:
    """Find the command's class and its defaults: those of the task that the arguments name."""
    # Imported late: a mistyped command should not wait for torch.
    from envs.tasks import find_task

    module, class_name = _CLASSES[name].split(":")
    command: type[Any] = getattr(importlib.import_module(module), class_name)
    if "federation" not in {one.name for one in dataclasses.fields(command)}:
        return command, None
    task = _named_task(arguments)
    return command, command(federation=find_task(task).federation)


def _named_task(arguments: list[str]) -> str:
    """Read the value of --task, whose settings are the defaults of the other options."""
    for position, argument in enumerate(arguments):
        if argument == "--task" and position + 1 < len(arguments):
            return arguments[position + 1]
        if argument.startswith("--task="):
            return argument.removeprefix("--task=")
    return "digits"


def parse_command(make: Callable[..., Any], arguments: Sequence[str], program: str, default: Any = None) -> Any:
    """Parse options into a dataclass.

    Raises:
        InputError: they do not fit; the message is one sentence.
    """
    if any(argument in ("-h", "--help") for argument in arguments):
        return tyro.cli(make, args=arguments, prog=program, **({} if default is None else {"default": default}))
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            return tyro.cli(make, args=arguments, prog=program, **({} if default is None else {"default": default}))
    except SystemExit as stop:
        raise InputError(_sentence(complaint.getvalue())) from stop


def _sentence(box: str) -> str:
    """Put the message of tyro's box of text on one line, with the options it suggests."""
    lines = [line.strip("│|+╭╮╰╯ \t") for line in box.splitlines()]
    rules = [index for index, line in enumerate(lines) if not line.strip("─-")]
    end = next((index for index in rules if index > 1), len(lines))
    message = " ".join(line for line in lines[1:end] if line.strip("─-"))
    message = re.sub(r"^Error parsing (federation|training): ", "", message)
    message = re.sub(
        r"^Error parsing (--[\w-]+): (invalid literal for int.*|could not convert string to float): (.*)$",
        lambda found: f"{found[1]} is {found[3]}, but it must be a {'whole ' if 'int' in found[2] else ''}number",
        message,
    )
    near = re.findall(r"^--[a-z][\w-]*", "\n".join(lines[end:]), re.MULTILINE) if "Unrecognized" in message else []
    message = message.rstrip(".")
    return f"{message}; did you mean {' or '.join(dict.fromkeys(near[:3]))}?" if near else f"{message}."


if __name__ == "__main__":
    sys.exit(main())
