"""Round that is handed out to whoever trains: what it is done with, once the ledger has been charged for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fl_core.base.arrays import FloatArray
from fl_core.run.charging import UPDATE


@dataclass(frozen=True)
class ChargedRound:
    """A round that the ledger has been charged for.

    Attributes:
        index: of the round, from 0.
        clip_norm: C, in the model's own units.
        noise: noise multiplier of everything that the round releases, by name: noise std over what one client may
            contribute, which is C for `update` and 1 for telemetry.
        server_learning_rate: factor on the mean update.
        knobs: values of all knobs of the method; arrays `[layers]` of those that have one per layer.
    """

    index: int
    clip_norm: float
    noise: Mapping[str, float]
    server_learning_rate: float
    knobs: Mapping[str, float | FloatArray]

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier σ of the sum of the updates."""
        return self.noise[UPDATE]

    @property
    def noise_std(self) -> float:
        """Standard deviation Cσ of the noise of the sum of the updates, each clipped to one C."""
        return self.clip_norm * self.noise_multiplier
