"""The order in which a client's minibatches draw from its samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_core.base.counters import mixed

_KEY_BITS = 32


def minibatch_positions(words: Tensor, counts: Tensor, steps: int, batch: int, longest: int) -> Tensor:
    """Draw minibatches of one round, as positions among each client's own training samples.

    A client walks through random permutations of its samples, one after the other: none is used again before all
    are used, and a minibatch may straddle two passes. Its draws depend on its word alone, not on `longest` or on who
    else takes part.

    Args:
        words: int64 [rows], a hashed word for each client and round, see `fl_core.base.counters`.
        counts: int64 [rows], the clients' samples, at least 1.
        steps: local steps.
        batch: samples per step.
        longest: a bound of `counts`; finding the largest would wait for a GPU.

    Returns:
        int64 [rows, steps, batch], each row in 0..count-1. Time and memory are those of sorting
        [rows, longest + steps*batch] integers.
    """
    counts = counts.unsqueeze(-1)
    column = torch.arange(longest - 1 + steps * batch, device=words.device)
    keys = mixed(words.unsqueeze(-1), column)
    # The pass in the high bits keeps passes together; within one, the keys shuffle. Whole passes precede the cut.
    order = torch.argsort((column // counts << _KEY_BITS) | keys, dim=-1)[:, : steps * batch]
    return (order % counts).view(len(words), steps, batch)
