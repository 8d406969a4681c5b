"""Parsing of a command's options: from the command line, and from a YAML file as every run folder holds one."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from agents.loggers import LOGGERS
from experiments.commands.tyro_rules import rules
from fl_core.base.errors import InputError, require

Help = tyro.conf.arg
_EXTRA: tuple[tuple[str, Any, Any], ...] = (
    (
        "config",
        Annotated[Path | None, Help(help="YAML file of options, such as a run's config.yaml; those typed here win.")],
        None,
    ),
    (
        "loggers",
        Annotated[
            tuple[str, ...],
            Help(
                help=f"Trackers that scalars go to beside TensorBoard, of {', '.join(LOGGERS)} (`dpilot list loggers`)."
            ),
        ],
        (),
    ),
    (
        "quiet",
        Annotated[tyro.conf.FlagCreatePairsOff[bool], Help(help="Print errors and warnings only.")],
        False,
    ),
    (
        "json",
        Annotated[
            tyro.conf.FlagCreatePairsOff[bool],
            Help(help="Print the result as JSON on standard output, and everything else on standard error."),
        ],
        False,
    ),
)


@dataclass(frozen=True)
class Invocation:
    """A parsed command line.

    Attributes:
        command: the command with its options.
        loggers: trackers that scalars are sent to beside TensorBoard.
        quiet: whether nothing but errors and warnings is printed.
        json: whether the result is printed as JSON.
    """

    command: Any
    loggers: tuple[str, ...]
    quiet: bool
    json: bool


def parse(name: str, cls: type[Any], arguments: Sequence[str], default: Any = None) -> Invocation:
    """Parse the options of a command.

    Args:
        name: of the command.
        cls: its dataclass.
        arguments: what was typed after the name.
        default: an instance whose values stand for those that are not typed.

    Raises:
        InputError: they do not fit; the message is one sentence.
    """
    usual = {} if default is None else {one.name: getattr(default, one.name) for one in fields(cls)}
    whole = with_extras(cls)
    _check_flags(whole, arguments)
    parsed = parse_options(whole, arguments, f"dpilot {name}", whole(**usual) if usual else None)
    command = cls(**{one.name: getattr(parsed, one.name) for one in fields(cls)})
    return Invocation(command, parsed.loggers, parsed.quiet, parsed.json)


def _check_flags(cls: type[Any], arguments: Sequence[str]) -> None:
    """Refuse a value given to a flag, which would be taken for the next thing that stands without an option."""
    flags = {f"--{name.replace('_', '-')}" for name, kind in get_type_hints(cls).items() if kind is bool}
    for argument in arguments:
        name, equals, value = argument.replace("_", "-").partition("=")
        name = name.replace("--no-", "--")
        require(not (equals and name in flags), f"{name} is a flag, but the value '{value}' was given; leave it out.")


def with_extras(cls: type[Any]) -> type[Any]:
    """Make a command's dataclass with the options that every command has beside its own."""
    extra = [(name, kind, field(default=default, kw_only=True)) for name, kind, default in _EXTRA]
    made = make_dataclass(cls.__name__, extra, bases=(cls,), frozen=True)
    made.__doc__ = cls.__doc__
    return made


def parse_options(make: Callable[..., Any], arguments: Sequence[str], program: str, default: Any = None) -> Any:
    """Parse options into a dataclass.

    Raises:
        InputError: they do not fit; the message is one sentence.
    """
    usual = {} if default is None else {"default": default}
    if any(argument in ("-h", "--help") for argument in arguments):
        with rules(explained=True):
            return tyro.cli(make, args=arguments, prog=program, **usual)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint), rules(explained=False):
            return tyro.cli(make, args=arguments, prog=program, description="", **usual)
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
    message = re.sub(
        r"^Error parsing (--[\w-]+): no type matching \{None\}\|(FLOAT|INT) could be instantiated from \['(.*)'\]",
        lambda found: f"{found[1]} is {found[3]}, but it must be a {'whole ' if found[2] == 'INT' else ''}number",
        message,
    )
    message = re.sub(
        r"^Error parsing (--[\w-]+): no type matching .*\[(FLOAT|INT)\b.* could be instantiated from \[(.*)\]",
        lambda found: f"{found[1]} is {found[3]}, but it must be {'whole ' if found[2] == 'INT' else ''}numbers",
        message,
    )
    near = re.findall(r"^--[a-z][\w-]*", "\n".join(lines[end:]), re.MULTILINE) if "Unrecognized" in message else []
    message = message.rstrip(".")
    return f"{message}; did you mean {' or '.join(dict.fromkeys(near[:3]))}?" if near else f"{message}."


# ---------------------------------------------------------------- files of options


_BUDGET = ("epsilon", "noise-multiplier")
"""Options of which one is given: a typed one takes the place of the other in a file."""
Reader = Callable[[Sequence[str]], list[str]]
"""Reader of what was typed, or stands in a file outside groups: names with an owner become those that are parsed."""


def with_config(name: str, cls: type[Any], arguments: Sequence[str], read: Reader = list) -> list[str]:
    """Put the options of a file that `--config` names before those that were typed, which thereby win.

    Raises:
        InputError: the file cannot be read, belongs to another command, or holds what is no option.
    """
    given = last_value(arguments, "config")
    typed = read(arguments)
    if given is None:
        return typed
    stated = {option for option in _BUDGET if last_value(typed, option) is not None}
    rivals = tuple(f"--{option}=" for option in _BUDGET if stated and option not in stated)
    written = config_arguments(name, cls, Path(given), read)
    return [*(one for one in written if not one.startswith(rivals)), *typed]


def last_value(arguments: Sequence[str], option: str) -> str | None:
    """Read the value of an option that other options depend on; None where it is not given."""
    value = None
    for position, argument in enumerate(arguments):
        if argument == f"--{option}" and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"--{option}="):
            value = argument.partition("=")[2]
    return value


def config_arguments(name: str, cls: type[Any], path: Path, read: Reader = list) -> list[str]:
    """Read a file of a command's options as arguments of the command line."""
    content = _read_mapping(path)
    written = content.pop("command", name)
    require(written == name, f"The file '{path}' holds options of dpilot {written!s:.40}, not of dpilot {name}.")
    require("config" not in content, f"The file '{path}' names another in config; write the options of both in one.")
    groups = {key: value for key, value in content.items() if isinstance(value, Mapping)}
    others = {key: value for key, value in content.items() if key not in groups}
    return [*read(list(_arguments(others, cls, "", path))), *_arguments(groups, cls, "", path)]


def _read_mapping(path: Path) -> dict[str, Any]:
    from experiments.records.plain_yaml import read_yaml  # few command lines name a file

    content = read_yaml(path)
    require(isinstance(content, dict), f"The file '{path}' must hold options by name, as 'epsilon: 4'.")
    return dict(content)


def _arguments(content: Mapping[str, Any], cls: type[Any], prefix: str, path: Path) -> Iterator[str]:
    """Convert options to what would be typed; groups of options may stand below their name, or side by side."""
    hints = get_type_hints(cls, include_extras=True)
    for key, value in content.items():
        option = key.replace("-", "_")
        if isinstance(value, Mapping):
            group = get_args(hints.get(option)) or (hints.get(option),)
            require(is_dataclass(group[0]), f"The file '{path}' has a group '{key}', but there is no such group.")
            bare = tyro.conf.OmitArgPrefixes in group
            yield from _arguments(value, group[0], prefix if bare else f"{prefix}{option}.".replace("_", "-"), path)
            continue
        _require_kind(_kind(option, hints), value, f"The file '{path}': {key}")
        yield from _argument(prefix + typed_name(option, hints), value, f"The file '{path}'")


def _kind(option: str, hints: Mapping[str, Any]) -> type | None:
    """Find the type of an option's values, in groups too; None where it has several, or there is no such option."""
    if option in hints:
        kind = hints[option]
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        kind = get_origin(kind) or kind
        return kind if isinstance(kind, type) and not is_dataclass(kind) else None
    groups = [one for hint in hints.values() for one in get_args(hint)[:1] if is_dataclass(one)]
    found = {_kind(option, get_type_hints(one, include_extras=True)) for one in groups} - {None}
    return found.pop() if len(found) == 1 else None


def _require_kind(kind: type | None, value: Any, name: str) -> None:
    """Refuse a truth value or a list for an option that takes neither, which no command line could say."""
    for wrong, takes in ((bool, bool), (list, tuple)):
        fits = kind not in _WORDS or kind is takes or not isinstance(value, wrong)
        require(fits, f"{name} is {value!r:.60}, but it must be {_WORDS.get(kind, 'another')}.")


_WORDS: Mapping[type | None, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list",
}


def typed_name(field_name: str, hints: Mapping[str, Any]) -> str:
    """Name the option of a field, which differs from the field's name where two groups have one of that name."""
    names = [getattr(remark, "name", None) for remark in get_args(hints.get(field_name))[1:]]
    own = [name for name in names if isinstance(name, str)]
    return own[0] if own else field_name.replace("_", "-")


def _argument(option: str, value: Any, where: str) -> Iterator[str]:
    """Convert one option to what would be typed."""
    if value is None:
        return  # as if it was not given
    if isinstance(value, bool):
        yield f"--{option}" if value else f"--{_negated(option)}"
    elif isinstance(value, list):
        plain = all(isinstance(one, (str, int, float)) for one in value)
        require(plain, f"{where}: {option} is a list of more than texts and numbers.")
        yield from (f"--{option}", *map(str, value))
    else:
        plain = isinstance(value, (str, int, float))
        require(plain, f"{where}: {option} is {value!r:.60}, but it must be text or number.")
        yield f"--{option}={value}"


def _negated(option: str) -> str:
    """Name the flag that turns an option off."""
    group, dot, own = option.rpartition(".")
    return f"{group}{dot}no-{own}"
