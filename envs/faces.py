"""From any face of an environment to what is inside."""

from __future__ import annotations

from typing import Any


def innermost(env: Any) -> Any:
    """What is below the wrappers of a face, or of a `DummyVecEnv` of faces: a core where it is a DPilot environment."""
    inner = getattr(env, "unwrapped", env)
    inner = getattr(inner, "envs", [inner])[0]
    inner = getattr(inner, "unwrapped", inner)
    return getattr(inner, "core", inner)
