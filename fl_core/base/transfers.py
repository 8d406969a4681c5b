"""Traffic between host and device that does not wait for the device."""

from __future__ import annotations

from typing import Any

from fl_core.base.libraries import NDArray, Tensor, torch


def to_device(values: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Copy values of the host to a device without waiting for it; what is there already is shared, not copied."""
    tensor: Tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    # From memory that may be swapped out, CUDA would first wait for all that the device has yet to do.
    return tensor if tensor.device.type == device.type else tensor.pin_memory().to(device, non_blocking=True)


def largest_count(counts: Tensor, bound: int) -> int:
    """Find the largest of some counts, 0 of none; on a GPU, which would have to be waited for, their bound."""
    if counts.device.type != "cpu":
        return bound
    return int(counts.max()) if len(counts) else 0
