"""Conversion of what server and clients exchange to Flower's records, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fl_core.base.arrays import FloatArray

MODEL, ROUND, KNOBS, UPLOAD, KEPT = "dpilot.model", "dpilot.round", "dpilot.knobs", "dpilot.upload", "dpilot.kept"
"""Names of the records: what the server sends, what of it is no array, its knobs, an upload, and a client's state."""


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Convert tensors by name."""
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in tensors.items()})


def from_arrays(record: ArrayRecord | None) -> dict[str, Tensor]:
    """Convert arrays to tensors by name, copies; none where there is no record."""
    items = () if record is None else record.items()
    return {name: torch.from_numpy(np.array(value.numpy())) for name, value in items}


def to_knobs(knobs: Mapping[str, float | FloatArray]) -> ConfigRecord:
    """Convert the values of knobs by name."""
    return ConfigRecord({name: value if isinstance(value, float) else value.tolist() for name, value in knobs.items()})


def from_knobs(record: ConfigRecord) -> dict[str, Any]:
    """Invert `to_knobs`."""
    return {name: np.array(value) if isinstance(value, list) else value for name, value in record.items()}


def arrays_of(content: RecordDict, name: str) -> dict[str, Tensor]:
    """Read the arrays of a message by the record's name; none where it lacks it."""
    return from_arrays(content.array_records.get(name))
