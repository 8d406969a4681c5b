"""The environment that a saved state was made in, to be compared before the state is used again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from envs import EnvCore
from fl_core.base.code_version import code_version
from fl_core.base.files import spelled_out


def environment_record(core: EnvCore) -> dict[str, Any]:
    """Version of the code and everything that an environment's episodes depend on, as JSON-able values.

    The share of telemetry is the one that accounted signals have added.
    """
    record: dict[str, Any] = spelled_out(
        {
            "code": code_version(),
            "setting": core.setting.as_record() | {"telemetry_share": core.task.federation.telemetry_share},
            "knobs": {knob.name: asdict(knob) for knob in core.knobs},
            "features": {feature.name: feature.scaled for feature in core.features},
        }
    )
    return record
