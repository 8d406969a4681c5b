"""Time of clip and noise in a round, in milliseconds of one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fl_core.base.streams import normal_draws
from fl_core.privacy.mechanism import clip_factors, scaled_sum

SIZES = (2_410, 114_000, 1_660_000)
"""Parameters of the models of the benchmark's cases."""
CLIENTS = 10
REPEATS = 7


@dataclass(frozen=True)
class MechanismCost:
    """Milliseconds for one round of ten clients.

    Attributes:
        size: parameters.
        clip: norms and factors of the updates.
        total: the sum of the clipped updates.
        noise: the noise of the sum, from 128-bit keys in float64.
        single_precision: as many normals by torch's float32 generator, to compare with.
    """

    size: int
    clip: float
    total: float
    noise: float
    single_precision: float


def mechanism_costs() -> list[MechanismCost]:
    """Time clip, sum and noise for every size."""
    return [_cost(size) for size in SIZES]


def _cost(size: int) -> MechanismCost:
    updates = torch.randn(1, CLIENTS, size)
    present, clip_norm = torch.ones(1, CLIENTS, dtype=torch.bool), torch.ones(1, 1, 1)
    clipped = clip_factors(updates, present, clip_norm)
    generator, buffer = torch.Generator().manual_seed(0), torch.empty(size)
    return MechanismCost(
        size=size,
        clip=_milliseconds(lambda: clip_factors(updates, present, clip_norm)),
        total=_milliseconds(lambda: scaled_sum(updates, clipped)),
        noise=_milliseconds(lambda: normal_draws((size,), 0, "noise")),
        single_precision=_milliseconds(lambda: buffer.normal_(generator=generator)),
    )


def _milliseconds(work: Callable[[], object]) -> float:
    """Time some work: the least of several repeats, after a first one."""
    work()
    best = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return 1000 * best
