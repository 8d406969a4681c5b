"""GPUs of this machine as seats for jobs: each worker is told by CUDA_VISIBLE_DEVICES which it may see."""

from __future__ import annotations

import os

from fl_core.base.errors import require
from fl_core.base.libraries import torch


def gpu_seats(gpus_per_job: float) -> list[str]:
    """Deal out the GPUs that this process sees: a value of CUDA_VISIBLE_DEVICES for each job that they have room for.

    Shares of a GPU are a promise of the jobs, held by nobody; neighbouring seats are on different GPUs.

    Args:
        gpus_per_job: a whole number, or a share of one in (0, 1).

    Raises:
        InputError: there are fewer than a job is to have.
    """
    names = _visible()
    require(
        gpus_per_job <= len(names),
        f"gpus-per-job is {gpus_per_job:g}, but this machine has {len(names) or 'no'} usable CUDA "
        f"device{'' if len(names) == 1 else 's'}.",
    )
    if gpus_per_job < 1:
        return names * int(1 / gpus_per_job + 1e-9)
    each = int(gpus_per_job)
    return [",".join(names[first : first + each]) for first in range(0, len(names) - each + 1, each)]


def _visible() -> list[str]:
    """Name the GPUs that this process sees, as CUDA_VISIBLE_DEVICES does."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(number) for number in range(count)])[:count]
