"""Named random streams: every draw of a run is a function of (seed, stream name, round), and of nothing else.

There is no generator state that an action could advance, so two controllers on one seed meet the same cohorts,
batches and noise, a resumed run continues exactly, and a row of a batch equals the run alone.
"""

from __future__ import annotations

import hashlib
import os
import zlib

from fl_core.base.libraries import numpy as np
from fl_core.base.libraries import torch
from fl_core.base.transfers import to_device

STREAMS = (
    *("init", "partition", "cohort", "minibatch", "noise", "telemetry", "evaluation", "mask", "risk"),
    *("population", "audit", "augmentation"),
)


def stream_seed(seed: int, stream: str, round_index: int = 0) -> int:
    """Derive the 63-bit seed of one draw of one stream.

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
    """Make the torch generator for one draw of one stream on a device."""
    return torch.Generator(device=device).manual_seed(stream_seed(seed, stream, round_index))


def numpy_generator(seed: int, stream: str, round_index: int = 0) -> np.random.Generator:
    """Make the NumPy generator for one draw of one stream."""
    return np.random.default_rng(stream_seed(seed, stream, round_index))


def noise_key(seed: int, stream: str, round_index: int = 0, secret: bytes = b"") -> int:
    """Derive the 128-bit key of one draw of privacy noise.

    Seeded noise must not repeat within a run, nor be found by trying seeds of 32 bits, which is all that torch's CPU
    generator keeps; a hash of everything the draw depends on gives every draw a key of its own.

    Args:
        seed: the run's seed, at least 0.
        stream: one of `STREAMS`.
        round_index: the round that the draw belongs to, at least 0.
        secret: up to 64 bytes that nobody else knows; without them, whoever knows the seed knows the noise.
    """
    if stream not in STREAMS:
        raise KeyError(stream)
    draw = f"{stream}/{seed}/{round_index}".encode()
    return int.from_bytes(hashlib.blake2b(draw, digest_size=16, key=secret, person=b"dpilot noise").digest(), "little")


def new_secret() -> bytes:
    """Take 32 bytes for `noise_key` from the operating system."""
    return os.urandom(32)


def secret_mark(secret: bytes) -> str:
    """Derive a mark by which a saved state knows the key of its noise; it gives nothing of the key away.

    Args:
        secret: as in `noise_key`; "" is the mark of none.
    """
    return hashlib.blake2b(secret, digest_size=16, person=b"dpilot mark").hexdigest() if secret else ""


def normal_draws(
    shape: tuple[int, ...],
    seed: int,
    stream: str,
    round_index: int = 0,
    device: torch.device | str = "cpu",
    secret: bytes = b"",
) -> torch.Tensor:
    """Draw standard normal noise in float64, the same on every device.

    The counter-based Philox generator takes the whole key; its float64 normals have no end, where float32 ones stop at
    5.77 standard deviations and so tell neighbouring sums apart now and then.

    Args:
        shape: of the draws.
        seed: as in `noise_key`.
        stream: as in `noise_key`.
        round_index: as in `noise_key`.
        secret: as in `noise_key`.
        device: where the draws are needed; they are made on the host.
    """
    philox = np.random.Philox(key=noise_key(seed, stream, round_index, secret))
    return to_device(np.random.Generator(philox).standard_normal(shape), torch.device(device))
