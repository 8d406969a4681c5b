"""What a round releases, and the entry of the ledger that it is charged as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fl_core.base.files import spelled_out

SIGNAL_CLASSES = ("public", "accounted", "raw")


class BudgetExhausted(Exception):
    """Raised for releases that would exceed the privacy budget; nothing is charged. A normal end of a run."""


@dataclass(frozen=True)
class Release:
    """One Gaussian release about a round's cohort."""

    name: str
    """Name of the released quantity, as `update` or `clip-bit`."""
    noise_multiplier: float
    """σ: noise std / sensitivity. For a quantile bit with noise std σ_b and sensitivity ½ that is 2σ_b."""
    signal_class: str = "accounted"


@dataclass(frozen=True)
class Charge:
    """Entry of the ledger: the releases of one round."""

    round: int
    releases: tuple[Release, ...]
    noise_multiplier: float
    """Joint σ of the round's releases, (Σ σ_k⁻²)^(−1/2): they are about one cohort, hence one release."""
    sampling_rate: float

    def as_row(self) -> list[Any]:
        """Return the charge as JSON values: `[round, [[name, σ, class], ...]]`."""
        told = [[one.name, spelled_out(float(one.noise_multiplier)), one.signal_class] for one in self.releases]
        return [self.round, told]
