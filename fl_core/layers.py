"""Layers that PyTorch has, in a form that is faster where a federation needs it."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

ROW_SIZE = 16384
"""Largest matrix of a convolution by rows; above, its zeros cost more than its shape gains."""

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


class RowConvolution(nn.Module):
    """A convolution of small images as one matrix product, from `kernel` whole rows to a row of outputs.

    Most of that matrix is zero, but it is small. Stacked over clients, the products are batched and wide enough to be
    fast, where PyTorch turns stacked convolutions into grouped ones.
    """

    bias: Tensor
    placement: Tensor

    def __init__(self, convolution: nn.Conv2d, width: int):
        """Share the parameters of a convolution with stride 1, for images of some width."""
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._kernel, self._margin = convolution.kernel_size[0], int(convolution.padding[0])
        outputs = width + 2 * self._margin - self._kernel + 1
        ways = torch.arange(width).view(-1, 1, 1) + self._margin - torch.arange(outputs).view(-1, 1)
        # 1 where input column i meets output column j by column k of the kernel, [i, j, k]
        self.register_buffer("placement", (ways == torch.arange(self._kernel)).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """`[batch, channels, height, width]` to the same of the outputs, channels-last in memory."""
        kernel, (inputs, outputs, _) = self._kernel, self.placement.shape
        kernels = self.weight.permute(3, 2, 1, 0)
        placed = self.placement.flatten(0, 1) @ kernels.flatten(1)
        matrix = placed.view(inputs, outputs, *kernels.shape[1:]).permute(2, 0, 3, 1, 4)
        rows = functional.pad(images.permute(0, 2, 3, 1).flatten(2), (0, 0, self._margin, self._margin))
        height = rows.shape[1] - kernel + 1
        windows = torch.cat([rows[:, start : start + height] for start in range(kernel)], dim=-1)
        result = torch.addmm(self.bias.repeat(outputs), windows.flatten(0, 1), matrix.flatten(3).flatten(0, 2))
        return result.view(len(images), height, outputs, -1).permute(0, 3, 1, 2)


class WindowConvolution(nn.Module):
    """A convolution as the matrix product of all windows with the kernels.

    For one input channel, its weight gradient is several times cheaper than PyTorch's. That by its input is not: it is
    meant for a network's first layer, where nobody asks for it.
    """

    bias: Tensor

    def __init__(self, convolution: nn.Conv2d):
        """Share the parameters of a convolution with stride 1."""
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._kernel, self._margin = convolution.kernel_size[0], int(convolution.padding[0])

    def forward(self, images: Tensor) -> Tensor:
        """`[batch, channels, height, width]` to the same of the outputs, channels-last in memory."""
        kernel, margin = self._kernel, self._margin
        padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, margin, margin, margin, margin))
        windows = padded.unfold(1, kernel, 1).unfold(2, kernel, 1).permute(0, 1, 2, 4, 5, 3)
        matrix = self.weight.permute(2, 3, 1, 0).flatten(0, 2)
        result = torch.addmm(self.bias, windows.flatten(3).flatten(0, 2), matrix)
        return result.view(*windows.shape[:3], -1).permute(0, 3, 1, 2)


def _is_plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a layer is a convolution that the layers above can do."""
    return (
        isinstance(module, nn.Conv2d)
        and module.bias is not None
        and module.kernel_size[0] == module.kernel_size[1]
        and module.padding in ((0, 0), module.padding[:1] * 2)
        and (module.stride, module.dilation, module.groups) == ((1, 1), (1, 1), 1)
        and module.padding_mode == "zeros"
    )


def for_cpu(network: nn.Sequential, shape: tuple[int, int, int]) -> nn.Sequential:
    """The same network with convolutions in forms that are faster on CPUs for images of a shape.

    Its layers keep their names and share their parameters.
    """
    parts = nn.Sequential()
    images = torch.zeros(1, *shape)
    for name, module in network.named_children():
        width = images.shape[-1]
        if _is_plain(module) and width <= 8 and module.weight[..., 0].numel() * width**2 <= ROW_SIZE:
            parts.add_module(name, RowConvolution(module, width))
        elif _is_plain(module) and module.in_channels == 1 and module.out_channels % 8 == 0:
            parts.add_module(name, WindowConvolution(module))
        else:
            parts.add_module(name, module)
        with torch.no_grad():
            images = module(images)
    return parts


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
