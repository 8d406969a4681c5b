"""Standard normal draws of a round's privacy noise, the one place where it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_core.base.arrays import BoolArray
from fl_core.base.streams import normal_draws


@dataclass(frozen=True)
class Draws:
    """Noise streams of one round of a batch; a run's draws depend on nothing but its seed, round and stream.

    Attributes:
        seeds: seeds of the runs.
        rounds: rounds done by each `[runs]`.
        device: where the draws are needed.
        secrets: keys of the runs' noise, empty where it is seeded.
    """

    seeds: Sequence[int]
    rounds: NDArray[np.int64]
    device: torch.device
    secrets: Sequence[bytes] = field(repr=False)

    def normal(self, stream: str, rows: BoolArray, shape: tuple[int, ...]) -> Tensor:
        """Draw `[runs, *shape]` in float64 for the rows `[runs]` that are True; 0 for the others."""
        noise = torch.zeros(len(self.seeds), *shape, dtype=torch.float64, device=self.device)
        for row in np.flatnonzero(rows):
            noise[row] = self._of_run(int(row), stream, shape)
        return noise

    def uploads(self, stream: str, rows: BoolArray, counts: NDArray[np.int64], width: int, size: int) -> Tensor:
        """Draw for each upload `[runs, width, size]`: the first `counts` `[runs]` places of each row that is True."""
        noise = torch.zeros(len(self.seeds), width, size, dtype=torch.float64, device=self.device)
        for row in np.flatnonzero(rows):  # a run's draws must not depend on the width of its batch
            noise[row, : int(counts[row])] = self._of_run(int(row), stream, (int(counts[row]), size))
        return noise

    def _of_run(self, row: int, stream: str, shape: tuple[int, ...]) -> Tensor:
        return normal_draws(shape, self.seeds[row], stream, int(self.rounds[row]), self.device, self.secrets[row])
