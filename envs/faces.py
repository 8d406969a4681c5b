"""Access to the cores below the wrappers of an environment, and a check of what wrappers make of their spaces."""

from __future__ import annotations

from typing import Any

from fl_core.base.errors import require
from fl_core.base.libraries import numpy as np
from fl_core.base.libraries import spaces


def cores(env: Any) -> list[Any]:
    """Find the `EnvCore` of each environment below wrappers and vectors; of one of another make, the environment.

    Those in other processes (`SubprocVecEnv`, `AsyncVectorEnv`, `DPilotProcessVecEnv`) are copied from there.

    Args:
        env: any face of a DPilot environment, wrapped or not, a vector of such faces, or a core.
    """
    inner = getattr(env, "unwrapped", env)
    rows = getattr(inner, "envs", None)
    if rows is None and not hasattr(inner, "core") and callable(getattr(inner, "get_attr", None)):
        rows = inner.get_attr("unwrapped")
    found = [getattr(row, "unwrapped", row) for row in rows or [inner]]
    return [getattr(row, "core", row) for row in found]


def require_own_spaces(env: Any, core: Any) -> None:
    """Refuse wrappers that change the numbers of observations or actions, as `VecNormalize` does.

    Args:
        env: a face of an environment, wrapped or not; what has no spaces passes.
        core: its core.

    Raises:
        InputError: the space of one observation or action is another than the core's, or a `VecNormalize`, which keeps
            the space, scales observations. Actions may have no bounds: those beyond the core's saturate.
    """
    require(
        not getattr(env, "norm_obs", False),
        "The environment's VecNormalize scales its observations, which means something else to a controller; hand in "
        "the environment below it.",
    )
    for kind in ("observation", "action"):
        own = getattr(core, f"{kind}_space")
        outer = getattr(env, f"single_{kind}_space", getattr(env, f"{kind}_space", own))
        bounds = [own, spaces.Box(-np.inf, np.inf, own.shape, np.float32)][: 1 if kind == "observation" else 2]
        require(
            any(_same(outer, one) for one in bounds),
            f"The wrappers of the environment turn its {kind}s from {_told(own)} into {_told(outer)}, which means "
            "something else to a controller; hand in the environment below them.",
        )


def _same(one: spaces.Space[Any], other: spaces.Box) -> bool:
    """Compare shape and bounds; the type of the numbers may differ."""
    if not isinstance(one, spaces.Box) or one.shape != other.shape:
        return False
    return bool(np.allclose(one.low, other.low) and np.allclose(one.high, other.high))


def _told(space: spaces.Space[Any]) -> str:
    if not isinstance(space, spaces.Box):
        return f"a {type(space).__name__}"
    ends = (f"{float(end):g}" for end in (np.min(space.low, initial=np.inf), np.max(space.high, initial=-np.inf)))
    return f"{space.shape} in [{', '.join(ends)}]"
