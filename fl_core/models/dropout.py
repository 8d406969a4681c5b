"""Dropout whose draws follow from the seed: the same by every executor, others for every client and round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fl_core.base.counters import happens, mixed
from fl_core.models.entry import Shape

_FIRST = 1 << 16
"""First of the words by which dropout's draws differ from augmentation's."""


class Dropout(nn.Module):
    """Dropout whose draws are given from outside; where none are, as in every test, it passes its inputs on.

    `torch.nn.Dropout` draws from torch's generators, so that no seed of a run repeats it and executors differ.
    """

    def __init__(self, probability: float):
        """Drop each unit with a probability in [0, 1)."""
        super().__init__()
        self.probability = probability

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs; `fl_core.models.model.Model` multiplies them by the factors of the units."""
        return inputs


@dataclass(frozen=True)
class Dropped:
    """A layer that drops units in training.

    Attributes:
        name: of the module.
        probability: that a unit is dropped.
        shape: of the units of one sample.
    """

    name: str
    probability: float
    shape: torch.Size


@contextmanager
def hooked(module: nn.Module, hooks: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Attach forward hooks to submodules by name while the context lasts."""
    handles = [module.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_dropouts(network: nn.Module, shape: Shape) -> tuple[Dropped, ...]:
    """Find the layers of this package that drop units, in the order in which they compute."""
    found: list[Dropped] = []
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, Dropout)}
    hooks = {
        name: lambda layer, __, output, name=name: found.append(Dropped(name, layer.probability, output.shape[1:]))
        for name, layer in layers.items()
    }
    if hooks:
        with hooked(network, hooks), torch.no_grad():
            network(torch.zeros(1, *shape))
    return tuple(found)


def unit_factors(dropouts: Sequence[Dropped], keys: Tensor, number: int) -> Tensor:
    """Draw the factors of the units that dropout scales: 0, or 1/(1 − p) for those that stay, `[..., units]`.

    Args:
        dropouts: the layers that drop them.
        keys: random words of the samples, int64 `[...]`.
        number: of the forward pass over these samples; each draws anew.
    """
    words, pieces, start = mixed(keys, _FIRST + number).unsqueeze(-1), [], 0
    for one in dropouts:
        units = torch.arange(start, start + one.shape.numel(), device=keys.device)
        stays = ~happens(mixed(words, units), one.probability)
        pieces.append(stays / (1 - one.probability))
        start += len(units)
    return torch.cat(pieces, dim=-1)


def scaling(dropouts: Sequence[Dropped], factors: Tensor) -> dict[str, Callable[..., Tensor]]:
    """Make the forward hooks, by module, that multiply by the units' factors `[batch, units]`."""
    pieces = factors.split([one.shape.numel() for one in dropouts], dim=-1)
    return {
        one.name: lambda _, __, output, own=piece: output * own.view(output.shape)
        for one, piece in zip(dropouts, pieces, strict=True)
    }
