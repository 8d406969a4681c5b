"""The option `--resume`, beside which no other stands, and the check of commands that have it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from fl_core.base.errors import InputError, require


class Resumable:
    """Options of a command that can go on with what was interrupted."""

    resume: Path | None
    missed: ClassVar[str] = "nothing to go on with"
    """What there is in a folder that is none, in words."""

    def check(self) -> None:
        """Refuse names and numbers that no command of this kind can have.

        Raises:
            InputError: one of them is not allowed or stands beside `resume`, or there is no such folder.
        """
        if self.resume is None:
            self.check_new()
        else:
            _require_alone(self)
            require(self.resume.is_dir(), f"'{self.resume}' is no folder, so there is {self.missed}.")

    def check_new(self) -> None:
        """Check the options of work that begins, as `check` does."""
        raise NotImplementedError


def _require_alone(command: Any) -> None:
    """Refuse other options beside `--resume`, which takes them from the folder.

    Args:
        command: a dataclass with a field `resume`, and defaults for all others; `workers`, which change no result, may
            be given.

    Raises:
        InputError: an option is not the default.
    """
    usual = type(command)()
    for one in fields(command):
        mine, default = getattr(command, one.name), getattr(usual, one.name)
        if one.name in ("resume", "workers") or mine == default:
            continue
        nested = fields(mine) if is_dataclass(mine) else ()
        names = [inner.name for inner in nested if getattr(mine, inner.name) != getattr(default, inner.name)]
        raise InputError(
            f"{(names or [one.name])[0].replace('_', '-')} is given beside resume, which takes every option from "
            f"'{command.resume}'; leave it out, or start anew."
        )
