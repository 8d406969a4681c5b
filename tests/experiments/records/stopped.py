"""Interruption of a run in the middle, as by Ctrl-C, with all that it has done saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import experiments.commands.run as run_module
from envs import EnvCore


@contextmanager
def interrupted_after(steps: int) -> Iterator[None]:
    """Interrupt environments after so many steps in all; every round is saved."""
    plain, calls = EnvCore.step, 0

    def step(self: EnvCore, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > steps:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EnvCore, "step", step)
        patched.setattr(run_module, "SAVE_SECONDS", -1.0)
        yield
