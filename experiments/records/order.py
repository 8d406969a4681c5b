"""`order.json` of a folder of results: what a command was asked for, from which `--resume FOLDER` goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError, require
from fl_core.base.files import drop_leftovers, spelled_out, write_json
from fl_core.base.sealed import read_sealed, require_same, sealed

FORMAT = 1
FILE = "order.json"


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


def read_order(folder: Path, command: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the order of a command that is to go on, and clear the folder of what was half written when it stopped.

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
    require(found == command, f"'{folder}' is of `dpilot {found}`; to go on: dpilot {found} --resume {folder}")
    drop_leftovers(folder)
    try:
        return dict(record["options"]), dict(record["made_in"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"The file '{path}' describes no command; start anew.") from error


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
