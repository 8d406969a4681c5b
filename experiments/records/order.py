"""`order.json` of a folder of results: what a command was asked for, from which `--resume FOLDER` goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fl_core.base.errors import require
from fl_core.base.fields import check_type, known_types
from fl_core.base.files import drop_leftovers, spelled_out, write_json
from fl_core.base.sealed import read_sealed, require_same, sealed, understood
from fl_core.base.text import printable, short

FORMAT = 1
FILE = "order.json"
COMMANDS = ("run", "train", "compare", "paper", "audit")
"""Those that go on with what was interrupted."""


def write_order(folder: Path, command: str, options: Mapping[str, Any], made_in: Mapping[str, Any]) -> None:
    """Write the order of a command into the folder of its results.

    Args:
        folder: of the results.
        command: its name, as typed.
        options: from which it is asked for again, as JSON-able values.
        made_in: code and files that its results depend on besides, as JSON-able values.

    Raises:
        FileError: it cannot be written.
    """
    record = {"command": command, "options": spelled_out(options), "made_in": spelled_out(made_in)}
    write_json(folder / FILE, sealed(record, FORMAT))


def read_order(
    folder: Path, command: str, options: Mapping[str, str], made_in: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the order of a command that is to go on, and clear the folder of what was half written when it stopped.

    Args:
        folder: of the results.
        command: its name.
        options: types of the options that its orders hold, as annotations; "Any" for what is only compared.
        made_in: types of the code and files that they name.

    Returns:
        Its options, and the code and files that its results depend on.

    Raises:
        InputError: there is none, it was changed, or it is of another command.
    """
    path = folder / FILE
    require(folder.is_dir(), f"'{folder}' is no folder, so there is nothing to go on with.")
    require(path.is_file(), f"'{folder}' holds no {FILE}, so it is no folder that `dpilot {command}` has made.")
    record = read_sealed(path, FORMAT)
    found = record.get("command")
    known = isinstance(found, str) and found in COMMANDS
    require(known, f"The file '{path}' is of {short(found)}, but it must be of {', '.join(COMMANDS)}; start anew.")
    require(found == command, f"'{folder}' is of `dpilot {found}`; to go on: dpilot {found} --resume {folder}")
    drop_leftovers(folder)
    asked, code = record.get("options"), record.get("made_in")
    return _typed(asked, options, f"The file '{path}': options"), _typed(code, made_in, f"The file '{path}': made_in")


def option_types(command: Any, names: Collection[str]) -> dict[str, str]:
    """Annotate options of a command, a dataclass with defaults, for `read_order`."""
    usual = {one.name: (str(one.type), getattr(command(), one.name)) for one in fields(command)}
    return {
        name: kind if kind in known_types() else type(value).__name__ for name in names for kind, value in [usual[name]]
    }


def _typed(values: Any, kinds: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return a record's values, each of the type that is asked for; lists become tuples."""
    require(isinstance(values, dict), f"{where} is {short(values)}, but it must be names with values; start anew.")
    for name in values:
        require(name in kinds, f"{where} has no entry '{printable(name)}'; start anew.")
    missing = [name for name, kind in kinds.items() if name not in values and kind != "Any"]
    require(not missing, f"{where} lacks '{', '.join(missing)}'; start anew.")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    for name, value in given.items():
        if kinds[name] != "Any":
            check_type(value, kinds[name], f"{where}.{name}")
    return given


@contextlib.contextmanager
def described(folder: Path, what: str) -> Iterator[None]:
    """Turn what the values of a stranger's order raise where a command is made of them into one sentence.

    Args:
        folder: of the results.
        what: the command's work, for the message: "comparison".

    Raises:
        InputError: the block raised one, or an error of types, values or names.
    """
    with understood(f"The order in '{folder}' describes no {what}, start anew"):
        yield


def require_same_order(folder: Path, command: str, said: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to go on by other code, or with other files, than the results so far are made of.

    Args:
        folder: of the results.
        command: its name.
        said: code and files in the order.
        here: those that are here.

    Raises:
        InputError: something differs.
    """
    require_same(said, here, f"The {command} in '{folder}'")
