"""The option `--resume`, beside which no other stands."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from fl_core.base.errors import InputError


def require_alone(command: Any) -> None:
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
