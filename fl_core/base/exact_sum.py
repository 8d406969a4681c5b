"""A sum of floats that is exact however many are added."""

from __future__ import annotations

import math


class ExactSum:
    """A sum held as a few floats of different sizes, so that each addition and reading takes the same time.

    Shewchuk 1997, "Adaptive precision floating-point arithmetic and fast robust geometric predicates", grow-expansion.

    Examples:
        >>> spent = ExactSum()
        >>> for _ in range(10):
        ...     spent.add(0.1)
        >>> spent.value(), spent.subtracted_from(1.0)
        (1.0, -5.551115123125783e-17)
    """

    def __init__(self) -> None:
        self._parts: list[float] = []

    def add(self, term: float) -> None:
        """Add a finite number."""
        kept = []
        for part in self._parts:
            large, small = (term, part) if abs(term) > abs(part) else (part, term)
            term = large + small
            lost = small - (term - large)
            if lost:
                kept.append(lost)
        self._parts = [*kept, term]

    def value(self) -> float:
        """Return the sum, rounded once, as `math.fsum` of all terms."""
        return math.fsum(self._parts)

    def subtracted_from(self, *terms: float) -> float:
        """Return the sum of the terms less this one, rounded once, so that its sign is exact."""
        return math.fsum([*terms, *(-part for part in self._parts)])
