"""Types of NumPy arrays that signatures share, and a check of those that have an entry for each row of a batch."""

from __future__ import annotations

from typing import Any

from fl_core.base.errors import require
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np
from fl_core.base.text import short

FloatArray = NDArray["np.float64"]
IndexArray = NDArray["np.int64"]
BoolArray = NDArray["np.bool_"]


def require_memory(state: Any, episode_start: Any, rows: int) -> None:
    """Refuse a policy's memory, or marks of fresh episodes, that belong to another number of observations.

    Args:
        state: None at first, then what `predict` returned: a tuple of arrays `[rows, ...]`.
        episode_start: None, one mark for all, or one for each row `[rows]`.
        rows: observations.

    Raises:
        InputError: one is of another kind or length.
    """
    whole = isinstance(state, tuple) and all(isinstance(part, np.ndarray) for part in state)
    require(
        state is None or (whole and all(part.shape[:1] == (rows,) for part in state)),
        f"state is {short(state)}, but it must be None or what predict returned before for {rows} observation(s).",
    )
    require(
        episode_start is None or np.shape(episode_start) in ((), (rows,)),
        f"episode_start has shape {np.shape(episode_start)}, but it must have one mark for each of {rows} "
        "observation(s).",
    )
