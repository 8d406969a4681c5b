"""Numbers of clients that are stacked at a time, from shapes and a memory limit alone."""

from __future__ import annotations

from fl_core.models.model import Model
from fl_core.training.work import LocalWork


def chunk_size(model: Model, work: LocalWork, memory_limit: int) -> int:
    """Compute how many rows to stack at a time: as many as the limit holds, in chunks of equal size."""
    count = len(work.parameters)
    most = max(1, memory_limit // row_bytes(model, work))
    if work.rows_vary:  # a program is traced per shape: near sizes are padded up to one that exists already
        return min(most, _round_up(count))
    return -(-count // -(-count // most))


def row_bytes(model: Model, work: LocalWork) -> int:
    """Estimate the bytes of a stacked row.

    They are its parameters, gradients and optimizer state, and the activations of a minibatch, forward and back.
    """
    batch = max(batches.shape[2] for batches in work.batches)
    return 4 * (6 * model.size + 3 * batch * model.activations)


def _round_up(count: int) -> int:
    """Round up to one of four sizes per octave, so that cohorts of varying size share a few programs."""
    grain = max(1, 1 << max(0, count.bit_length() - 3))
    return -(-count // grain) * grain
