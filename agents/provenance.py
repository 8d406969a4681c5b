"""The environment that a saved state was made in, to be compared before the state is used again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from envs import EnvCore
from fl_core.base.code_version import code_version
from fl_core.base.files import spelled_out


def environment_record(core: EnvCore) -> dict[str, Any]:
    """Version of the code and everything that an environment's episodes depend on, as JSON-able values."""
    task = core.task
    record: dict[str, Any] = spelled_out(
        {
            "code": code_version(),
            "environment": asdict(core.spec),
            "federation": asdict(task.federation),
            "clip_norm": task.clip_norm,
            "clip_range": task.clip_range,
            "knobs": {knob.name: asdict(knob) for knob in core.knobs},
            "features": {feature.name: feature.scaled for feature in core.features},
        }
    )
    return record
