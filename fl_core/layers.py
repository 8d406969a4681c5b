"""Layers that PyTorch has, in a form that is faster where a federation needs it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

_POOL: tuple[list[int], list[int], list[int], list[int], bool] = ([2, 2], [2, 2], [0, 0], [1, 1], False)
"""Kernel, stride, padding, dilation and ceil mode of 2x2 max-pooling."""


class _ChannelsLastMaxPool(torch.autograd.Function):
    """Max-pooling that is channels-last inside and contiguous outside, in both directions."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        inside = images.contiguous(memory_format=torch.channels_last)
        pooled, indices = torch.ops.aten.max_pool2d_with_indices(inside, *_POOL)
        ctx.save_for_backward(inside, indices)
        return pooled.contiguous()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        inside, indices = ctx.saved_tensors
        inner = gradient.contiguous(memory_format=torch.channels_last)
        spread = torch.ops.aten.max_pool2d_with_indices_backward(inner, inside, *_POOL, indices)
        return spread.contiguous()  # type: ignore[no-any-return]


class ChannelsLastMaxPool(nn.Module):
    """`torch.nn.MaxPool2d(2)` through the channels-last layout, in which PyTorch's CPU kernel is six times faster."""

    def forward(self, images: Tensor) -> Tensor:
        """`[batch, channels, height, width]` to `[batch, channels, height // 2, width // 2]`, contiguous both."""
        pooled: Tensor = _ChannelsLastMaxPool.apply(images)
        return pooled


def for_one_client(network: nn.Sequential) -> nn.Sequential:
    """The same network, with layers that are faster on CPUs but cannot be mapped over stacked clients.

    Its layers keep their names; those with parameters are shared.
    """
    parts = nn.Sequential()
    for name, module in network.named_children():
        swapped = isinstance(module, nn.MaxPool2d) and module.kernel_size == 2
        parts.add_module(name, ChannelsLastMaxPool() if swapped else module)
    return parts


class Dense(nn.Module):
    """`torch.nn.Linear` with its weight as `[inputs, outputs]`.

    Stacked over clients, products and weight gradients then come out in the layout of the parameters, where the
    transposed weight of PyTorch's layer costs a copy of every gradient.
    """

    def __init__(self, inputs: int, outputs: int):
        """Draw weight and bias as `torch.nn.Linear` does."""
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """`[batch, inputs]` to `[batch, outputs]`."""
        return torch.addmm(self.bias, inputs, self.weight)
