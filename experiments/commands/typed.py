"""Settings as they would be typed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from envs.tasks import find_task
from fl_core.run.budget import stated


def typed_options(task: str, settings: Mapping[str, Any], left_out: Collection[str] = ()) -> list[str]:
    """List the options that make a task's federation into one with these settings, as `--rounds 20`.

    Args:
        task: a built-in one.
        settings: of a federation, by name; others are ignored, and those that are missing are the task's.
        left_out: names that are not to be typed.
    """
    options, own = list[str](), stated(settings)
    for name, value in asdict(find_task(task).federation).items():
        chosen = own.get(name, value)
        if chosen != value and name not in left_out:
            options += [f"--{name.replace('_', '-')}", str(chosen)]
    return options
