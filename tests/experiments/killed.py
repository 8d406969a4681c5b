"""Commands that are killed at a chosen call, in processes of their own whose libraries are loaded once for all."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from fl_core.base.processes import process_context


def run_killed(arguments: Sequence[str], method: str, call: int) -> None:
    """Run a command in a process that is killed when a method is called for the n-th time.

    Args:
        arguments: of the command line.
        method: its place, `module:Class.method`.
        call: n.
    """
    process = process_context("experiments.cli").Process(target=_killed_in, args=(list(arguments), method, call))  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _killed_in(arguments: list[str], method: str, call: int) -> None:
    from experiments.cli import main
    from tests.experiments.conftest import without_figures

    place, _, name = method.rpartition(".")
    owner, calls = resolve_name(place), 0
    plain = getattr(owner, name)

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given)

    setattr(owner, name, counted)
    with without_figures():
        main(arguments)
