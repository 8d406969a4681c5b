"""Actions as they come from a policy: checked before anything is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.knobs import Knob
from fl_core.base.errors import InputError, require
from fl_core.base.text import short
from fl_core.run.plan import BoolArray, FloatArray


def read_actions(actions: NDArray[Any], runs: int, knobs: int) -> FloatArray:
    """Copy actions as coordinates `[runs, knobs]` of float64.

    Raises:
        InputError: there is not one coordinate per run and knob.
    """
    try:
        coordinates = np.array(actions, dtype=np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(f"actions is {short(actions)}, but it must be an array of numbers.") from error
    shape = (runs, knobs)
    require(
        coordinates.shape == shape, f"actions have shape {coordinates.shape}, but it must be {shape}: runs and knobs."
    )
    return coordinates


def require_finite(coordinates: FloatArray, active: BoolArray, knobs: Sequence[Knob]) -> None:
    """Refuse NaN and infinity in the coordinates `[runs, knobs]` of the active runs `[runs]`.

    Raises:
        InputError: there is one; the sentence names the first one's knob.
    """
    for row, place in np.argwhere(active[:, None] & ~np.isfinite(coordinates)):
        where = f" of run {row}" if len(coordinates) > 1 else ""
        raise InputError(
            f"The action for knob '{knobs[place].name}'{where} is {coordinates[row, place]:g}, but it must be a finite "
            "number; a policy that returns none has diverged."
        )


def share_outside(coordinates: FloatArray) -> FloatArray:
    """Compute the share of each run's coordinates that lie outside [-1, 1] `[runs]`; 0 where there are none."""
    return np.asarray((np.abs(coordinates) > 1).sum(axis=1) / max(1, coordinates.shape[1]))
