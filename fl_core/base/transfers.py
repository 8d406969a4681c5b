"""Traffic between host and device that does not wait for the device."""

from __future__ import annotations

from functools import cache
from typing import Any

from fl_core.base.libraries import NDArray, Tensor, torch


def to_device(values: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Copy values of the host to a device without waiting for it; what is there already is shared, not copied."""
    tensor: Tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    # From memory that may be swapped out, CUDA would first wait for all that the device has yet to do.
    return tensor if tensor.device.type == device.type else tensor.pin_memory().to(device, non_blocking=True)


def to_device_aside(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device, on a GPU in a stream of its own, beside what was asked for before.

    The host goes on at once and makes the next copy ready; whatever is asked for after this waits for the copy.
    """
    if device.type != "cuda":
        return to_device(tensor, device)
    aside, present = _copying(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(aside):
        there = to_device(tensor, device)
    present.wait_stream(aside)
    there.record_stream(present)  # made in the other stream, whose next copy must not take its memory too early
    return there


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def largest_count(counts: Tensor, bound: int) -> int:
    """Find the largest of some counts, 0 of none; on a GPU, which would have to be waited for, their bound."""
    if counts.device.type != "cpu":
        return bound
    return int(counts.max()) if len(counts) else 0
