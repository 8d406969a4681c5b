"""Named random streams: every draw of a run is a function of (seed, stream name, round), and of nothing else.

There is no generator state that an action could advance, so two controllers on one seed meet the same cohorts,
batches and noise, a resumed run continues exactly, and a row of a batch equals the run alone.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch

STREAMS = (
    *("init", "partition", "cohort", "minibatch", "noise", "telemetry", "evaluation", "mask", "risk"),
    *("population", "audit"),
)


def stream_seed(seed: int, stream: str, round_index: int = 0) -> int:
    """A 63-bit seed for one draw of one stream.

    Args:
        seed: the run's seed, at least 0.
        stream: one of `STREAMS`.
        round_index: the round the draw belongs to, at least 0.
    """
    if stream not in STREAMS:
        raise KeyError(stream)
    entropy = [seed, zlib.crc32(stream.encode()), round_index]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_generator(
    seed: int, stream: str, round_index: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator for one draw of one stream on the given device."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, stream, round_index))


def numpy_generator(seed: int, stream: str, round_index: int = 0) -> np.random.Generator:
    """A NumPy generator for one draw of one stream."""
    return np.random.default_rng(stream_seed(seed, stream, round_index))
