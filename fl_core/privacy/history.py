"""Histories of Gaussian releases: joined where they share a sample, merged, and grouped where they are many."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fl_core.base.errors import require_count
from fl_core.privacy.curves import precision, require_noise_multiplier, require_sampling_rate

Segment = tuple[float, float, int]
"""Noise multiplier, sampling rate, steps."""


def joint_noise_multiplier(multipliers: Iterable[float]) -> float:
    """(Σ_k σ_k⁻²)^(−1/2): several Gaussian releases about one and the same cohort are one release with this σ.

    Exact, whatever the q, provided that they share the Poisson sample. No release, or noise without end, is infinite.
    """
    values = list(multipliers)
    for value in values:
        require_noise_multiplier(value)
    if len(values) == 1:
        return values[0]
    if 0 in values:
        return 0.0
    total = math.hypot(*(1 / value for value in values))
    return 1 / total if total > 0 else math.inf


def merge(segments: Iterable[Segment]) -> list[Segment]:
    """Equal (σ, q) added up, everything at q = 1 as the one Gaussian that it is; σ above 1e154 counts as infinite."""
    steps_of: dict[tuple[float, float], int] = {}
    for sigma, q, steps in segments:
        require_noise_multiplier(sigma)
        require_sampling_rate(q)
        require_count("steps", steps, least=0)
        if steps > 0 and precision(sigma) > 0:
            key = (float(sigma), float(q))
            steps_of[key] = steps_of.get(key, 0) + steps
    full = [(sigma, steps) for (sigma, q), steps in steps_of.items() if q == 1]
    merged = [(sigma, q, steps) for (sigma, q), steps in sorted(steps_of.items()) if q < 1]
    if full:
        total = math.hypot(*(math.sqrt(steps) / sigma if sigma > 0 else math.inf for sigma, steps in full))
        merged.append((1 / total, 1.0, 1))
    return merged


def group(segments: list[Segment], most: int) -> list[Segment]:
    """At most `most` segments: those in one cell of a geometric grid of (σ, q) count with its least σ and greatest q.

    Less noise never lowers ε, and neither does a higher rate: a sample at rate q is one at rate p ≥ q of which each
    member is dropped again with probability 1 − q/p, a post-processing. So the result stays an upper bound. The grid is
    as fine as `most` allows: 100 cells for σ's within a factor of 3 of each other cost 0.5 % in σ.
    """
    least, width = min(sigma for sigma, _, _ in segments), 1e-3
    grouped = {(sigma, q): steps for sigma, q, steps in segments}
    while len(grouped) > most:
        cells: dict[tuple[int, int], Segment] = {}
        for sigma, q, steps in segments:
            cell = (math.floor((math.log(sigma) - math.log(least)) / width), math.floor(-math.log(q) / width))
            low, high, count = cells.get(cell, (sigma, q, 0))
            cells[cell] = (min(low, sigma), max(high, q), count + steps)
        grouped = {}
        for sigma, q, steps in cells.values():
            grouped[sigma, q] = grouped.get((sigma, q), 0) + steps
        width *= 1.25
    return [(sigma, q, steps) for (sigma, q), steps in sorted(grouped.items())]
