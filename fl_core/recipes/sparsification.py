"""Which coordinates of the update a client uploads; applied before the clip, so the sensitivity stays the clip norm."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Sparsification:
    """No sparsification: every shared coordinate is uploaded."""

    def __call__(self, update: Tensor) -> Tensor:
        """The update `[..., size]` with the coordinates that are not uploaded set to 0."""
        return update
