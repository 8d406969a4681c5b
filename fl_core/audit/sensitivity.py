"""Audit of the sensitivity: the distance by which one client moves the released sum, with the noise off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.audit.findings import Finding
from fl_core.audit.neighbours import Neighbours, without_noise
from fl_core.run.config import FederationConfig

TOLERANCE = 1e-3
"""Part of C by which float32 sums of cohorts may be off."""


@dataclass(frozen=True)
class Sensitivity:
    """The worst case over all pairs of neighbours.

    Attributes:
        total: change of the sum over C.
        mean: change of the mean that moves the server over C / expected cohort; None where its divisor is public, so
            that the mean tells no more than the sum.
        uploads: norm of single uploads over C, where they are noised one by one; else None.
        pairs: neighbours compared.
    """

    total: float
    mean: float | None
    uploads: float | None
    pairs: int

    @property
    def holds(self) -> bool:
        """True if nobody passes C."""
        return max(self.total, self.mean or 0.0, self.uploads or 0.0) <= 1 + TOLERANCE

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that one client moves by more than C."""
        return tuple(self._findings())

    def _findings(self) -> Iterator[Finding]:
        limit = 1 + TOLERANCE
        if self.total > limit:
            yield Finding("sensitivity", "sum", True, f"one client moves the released sum by {self.total:.3g} times C")
        if self.mean is not None and self.mean > max(limit, self.total * limit):
            text = f"one client moves the server's mean by {self.mean:.3g} times C over the expected cohort"
            yield Finding("sensitivity", "mean", True, text)
        if self.uploads is not None and self.uploads > limit:
            yield Finding("sensitivity", "uploads", True, f"uploads are up to {self.uploads:.3g} times C long")


def attack_sensitivity(config: FederationConfig, clip_norm: float, seed: int) -> Sensitivity:
    """Compare released sums and server models of neighbouring cohorts.

    Where the divisor is public, so is the number of clients, and a client that is gone stays but uploads nothing.

    Args:
        config: the federation as it is to run.
        clip_norm: C.
        seed: of the partition and the updates.
    """
    neighbours = Neighbours(without_noise(config), clip_norm, seed)
    divisor_is_public = config.recipe().aggregation.divide_by != "expected" and not config.cohort_varies
    total = mean = uploads = 0.0
    pairs = 0
    for whole, less in neighbours.pairs(("own", "against"), silent=divisor_is_public):
        pairs += 1
        total = max(total, _norm(whole.total - less.total) / clip_norm)
        mean = max(mean, _norm(whole.moved - less.moved) * config.cohort / clip_norm)
        uploads = max(uploads, whole.longest / clip_norm)
    return Sensitivity(
        total=total,
        mean=None if divisor_is_public else mean,
        uploads=uploads if config.noise_model().by_upload else None,
        pairs=pairs,
    )


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
