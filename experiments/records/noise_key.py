"""The key of a run's secret noise, kept for resuming: a file that only its owner can read, far from the results.

It lies in the user's state folder, under a name that follows from the place of the run's folder, and is deleted when
the run has ended. Whoever has it can subtract the run's noise, as whoever knows the seed can where noise is seeded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from fl_core.base.errors import FileError, InputError, require
from fl_core.base.files import drop_leftovers, write_bytes

_BYTES = 32


def key_home(runs: Path) -> Path:
    """Find the folder of the keys of runs.

    Args:
        runs: folder that holds the runs' folders.

    Raises:
        InputError: it lies among the results.
    """
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state").resolve() / "dpilot"
    require(
        not home.is_relative_to(runs.resolve()),
        f"The key of secret noise would lie in '{home}', among the results; set XDG_STATE_HOME to another folder.",
    )
    return home


def key_path(folder: Path) -> Path:
    """Name the file of the key for the run in a folder; `InputError` as `key_home`."""
    resolved = folder.resolve()
    return key_home(resolved.parent) / f"{hashlib.sha256(str(resolved).encode()).hexdigest()[:32]}.key"


def save_key(folder: Path, key: bytes) -> None:
    """Write the key of the run in a folder, with mode 600.

    Raises:
        FileError: it cannot be written.
    """
    path = key_path(folder)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"The folder '{path.parent}' could not be made: {error.strerror or error}.") from error
    drop_leftovers(path.parent)
    write_bytes(path, key, mode=0o600)


def load_key(folder: Path) -> bytes:
    """Read the key of the run in a folder.

    Raises:
        InputError: it is missing, others can read it, or it is no key.
    """
    path = key_path(folder)
    try:
        key, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise InputError(
            f"The noise of the run in '{folder}' is secret, and its key '{path}' cannot be read "
            f"({error.strerror or error}): a run goes on only on the machine and in the folder where it began."
        ) from error
    require(mode & 0o077 == 0, f"The key '{path}' of the run's noise has mode {mode:o}, so others can read it.")
    require(len(key) == _BYTES, f"The file '{path}' has {len(key)} bytes, but the key of a run's noise has {_BYTES}.")
    return key


def drop_key(folder: Path) -> None:
    """Delete the key of a run that has ended; its noise can be made by nobody again."""
    with contextlib.suppress(OSError):
        key_path(folder).unlink()
