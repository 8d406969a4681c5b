"""Random draws without a generator: each is a hash of what it depends on, so all devices and executors draw the same.

For training alone, as minibatches, random masks, shifts of images and dropped units; privacy noise has generators of
its own. What a client draws costs nothing for clients that do not take part.
"""

from __future__ import annotations

import zlib
from typing import Any, overload

from fl_core.base.libraries import Tensor, torch
from fl_core.base.streams import stream_seed

_WORD = 2**32 - 1
_INCREMENT = 0x9E3779B9


@overload
def mixed(first: int, second: int) -> int: ...
@overload
def mixed(first: Tensor, second: Tensor | int) -> Tensor: ...
def mixed(first: Any, second: Any) -> Any:
    """Hash two words into one, by the finalizer of SplitMix32 after each; for one first, no two seconds give the same.

    Args:
        first: int64 in 0..2³² − 1, of any shape, or a whole number.
        second: likewise, of a shape that broadcasts with it.
    """
    return _scrambled(_scrambled(first) ^ second)


def _scrambled(word: Any) -> Any:
    word = (word + _INCREMENT) & _WORD
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & _WORD  # both factors are below 2³¹, so no product overflows
    word = ((word ^ (word >> 15)) * 0x735A2D97) & _WORD
    return word ^ (word >> 15)


def below(keys: Tensor, count: int) -> Tensor:
    """Draw whole numbers in 0..count − 1 from hashed words, for counts far below 2³¹."""
    return (keys * count) >> 32


def happens(keys: Tensor, probability: float) -> Tensor:
    """Draw True with a probability, from hashed words."""
    return keys < round(probability * 2**32)


def uniform(keys: Tensor) -> Tensor:
    """Draw float32 numbers in [0, 1), multiples of 2⁻²⁴, from hashed words."""
    return (keys >> 8).to(torch.float32) * 2**-24


def stream_words(seed: int, stream: str, purpose: str, round_index: int) -> int:
    """Derive the 32-bit word that all draws of one round for one purpose depend on.

    Args:
        seed: the run's seed.
        stream: one of `fl_core.base.streams.STREAMS`.
        purpose: tells apart several uses of the stream in one round.
        round_index: rounds done.
    """
    whole = stream_seed(seed, stream, round_index) ^ zlib.crc32(purpose.encode())
    return mixed(whole & _WORD, whole >> 32)
