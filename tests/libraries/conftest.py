"""Short runs for one training with each library; the libraries need environments of their own (`docs/libraries.md`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

TINY: dict[str, Any] = {
    "clients": 6,
    "rounds": 3,
    "local_steps": 1,
    "executor": "vectorized",
    "evaluation_samples": 50,
    "reward": "final-accuracy",
}
ID = "envs:DPilot/Clip-v0"
"""With the module in front, so that a library's own processes register the ids as well."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
