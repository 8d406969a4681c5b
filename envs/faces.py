"""Access to the core below the wrappers of an environment."""

from __future__ import annotations

from typing import Any


def innermost(env: Any) -> Any:
    """Unwrap an environment, or a `DummyVecEnv` of some, to its `EnvCore`; one of another make to its base."""
    inner = getattr(env, "unwrapped", env)
    inner = getattr(inner, "envs", [inner])[0]
    inner = getattr(inner, "unwrapped", inner)
    return getattr(inner, "core", inner)
