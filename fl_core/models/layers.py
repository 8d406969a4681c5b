"""Layers of PyTorch in forms that are faster where a federation needs them.

Every form shares the parameters of the layer it stands for, so that models, clips and saved weights never see which
one computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

ROW_SIZE = 16384
"""Largest matrix of a `RowConvolution`, in floats; above, its zeros cost more than its shape gains."""

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
        """Map `[batch, channels, height, width]` to `[batch, channels, height // 2, width // 2]`, contiguous both."""
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
        """Share the parameters of a convolution with stride 1, for images of one width."""
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._kernel, self._margin = convolution.kernel_size[0], int(convolution.padding[0])
        outputs = width + 2 * self._margin - self._kernel + 1
        ways = torch.arange(width).view(-1, 1, 1) + self._margin - torch.arange(outputs).view(-1, 1)
        # 1 where input column i meets output column j by column k of the kernel, [i, j, k]
        self.register_buffer("placement", (ways == torch.arange(self._kernel)).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map `[batch, channels, height, width]` to `[batch, outputs, ...]`, channels-last in memory."""
        kernel, (inputs, outputs, _) = self._kernel, self.placement.shape
        kernels = self.weight.permute(3, 2, 1, 0)
        # The kernels are laid into the row matrix by a product with a constant, which autograd and vmap both know.
        placed = self.placement.flatten(0, 1) @ kernels.flatten(1)
        matrix = placed.view(inputs, outputs, *kernels.shape[1:]).permute(2, 0, 3, 1, 4)
        rows = functional.pad(images.permute(0, 2, 3, 1).flatten(2), (0, 0, self._margin, self._margin))
        height = rows.shape[1] - kernel + 1
        windows = torch.cat([rows[:, start : start + height] for start in range(kernel)], dim=-1)
        result = torch.addmm(self.bias.repeat(outputs), windows.flatten(0, 1), matrix.flatten(3).flatten(0, 2))
        return result.view(len(images), height, outputs, -1).permute(0, 3, 1, 2)


class WindowConvolution(nn.Module):
    """A convolution as the matrix product of all windows with the kernels.

    For one input channel, its weight gradient is several times cheaper than PyTorch's. The gradient by its input is
    not: it is meant for a network's first layer, whose input needs none.
    """

    bias: Tensor

    def __init__(self, convolution: nn.Conv2d):
        """Share the parameters of a convolution with stride 1."""
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._kernel, self._margin = convolution.kernel_size[0], int(convolution.padding[0])

    def forward(self, images: Tensor) -> Tensor:
        """Map `[batch, channels, height, width]` to `[batch, outputs, ...]`, channels-last in memory."""
        kernel, margin = self._kernel, self._margin
        padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, margin, margin, margin, margin))
        windows = padded.unfold(1, kernel, 1).unfold(2, kernel, 1).permute(0, 1, 2, 4, 5, 3)
        matrix = self.weight.permute(2, 3, 1, 0).flatten(0, 2)
        result = torch.addmm(self.bias, windows.flatten(3).flatten(0, 2), matrix)
        return result.view(*windows.shape[:3], -1).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class _Windows:
    """Geometry of a convolution's windows: square kernels, one stride and one margin for both directions."""

    kernel: int
    stride: int
    margin: int

    def cut(self, images: Tensor) -> Tensor:
        """Cut images `[..., height, width, batch]` into windows `[..., kernel, kernel, rows, columns, batch]`."""
        padded = functional.pad(images, (0, 0) + 4 * (self.margin,)) if self.margin else images
        # Strided views first, one copy at the end: it moves whole runs of the batch, which is the innermost dimension.
        windows = padded.unfold(-3, self.kernel, self.stride).unfold(-3, self.kernel, self.stride)
        return windows.movedim((-2, -1), (-5, -4)).contiguous()

    def add_up(self, windows: Tensor, height: int, width: int) -> Tensor:
        """Transpose `cut`: sum into each pixel all its places in the windows."""
        rows, columns, batch = windows.shape[-3:]
        images = windows.new_zeros(*windows.shape[:-5], height + 2 * self.margin, width + 2 * self.margin, batch)
        down, across = self.stride * (rows - 1) + 1, self.stride * (columns - 1) + 1
        # Windows that share their place in the kernel do not overlap, so kernel² strided additions do for all of them.
        for i in range(self.kernel):
            for j in range(self.kernel):
                place = images[..., i : i + down : self.stride, j : j + across : self.stride, :]
                place.add_(windows[..., i, j, :, :, :])
        return images[..., self.margin : self.margin + height, self.margin : self.margin + width, :]


class _Cut(torch.autograd.Function):
    """Autograd function of `_Windows.cut`; its derivative `add_up` is several times faster than the rules for views."""

    @staticmethod
    def forward(images: Tensor, where: _Windows) -> Tensor:
        return where.cut(images)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Windows], output: Tensor) -> None:
        ctx.size, ctx.where = inputs[0].shape[-3:-1], inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AddUp.apply(gradient, ctx.where, *ctx.size), None

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int, None], images: Tensor, where: _Windows) -> tuple[Tensor, int]:
        return _Cut.apply(images.movedim(in_dims[0], 0), where), 0


class _AddUp(torch.autograd.Function):
    """Autograd function of `_Windows.add_up`, for derivatives of `_Cut`."""

    @staticmethod
    def forward(windows: Tensor, where: _Windows, height: int, width: int) -> Tensor:
        return where.add_up(windows, height, width)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Windows, int, int], output: Tensor) -> None:
        ctx.where = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _Cut.apply(gradient, ctx.where), None, None, None

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int, None, None, None], windows: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return _AddUp.apply(windows.movedim(in_dims[0], 0), *rest), 0


class BatchLastConvolution(nn.Module):
    """A convolution of any stride as the matrix product of the kernels with all windows, the batch innermost.

    Windows are then copied in runs of a whole batch, and the product is as wide as a batch of images: on a CPU, small
    strided convolutions take two thirds of the time of PyTorch's, also stacked, where PyTorch's become grouped.
    """

    bias: Tensor

    def __init__(self, convolution: nn.Conv2d):
        """Share the parameters of a convolution."""
        super().__init__()
        assert convolution.bias is not None
        self.weight, self.bias = convolution.weight, convolution.bias
        self._where = _Windows(convolution.kernel_size[0], convolution.stride[0], int(convolution.padding[0]))

    def forward(self, images: Tensor) -> Tensor:
        """Map `[batch, channels, height, width]` to `[batch, outputs, ...]`, batch-last in memory."""
        windows = _Cut.apply(images.permute(1, 2, 3, 0), self._where)
        result = torch.addmm(self.bias.unsqueeze(-1), self.weight.flatten(1), windows.flatten(3).flatten(0, 2))
        return result.view(-1, *windows.shape[-3:]).permute(3, 0, 1, 2)


def _is_plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return True for a convolution that the layers above can compute, up to its stride."""
    return (
        type(module) is nn.Conv2d  # a class made from it may compute something else
        and module.bias is not None
        and module.kernel_size[0] == module.kernel_size[1]
        and module.padding in ((0, 0), module.padding[:1] * 2)
        and module.stride[0] == module.stride[1]
        and (module.dilation, module.groups) == ((1, 1), 1)
        and module.padding_mode == "zeros"
    )


def _on_cpu(module: nn.Module, width: int) -> nn.Module:
    """Pick the form of a layer that is fastest on a CPU for images of one width."""
    if not _is_plain(module):
        return module
    if module.stride[0] > 1:
        return BatchLastConvolution(module)
    # Small images make row matrices that are worth their zeros; a single input channel marks the first layer.
    if width <= 8 and module.weight[..., 0].numel() * width**2 <= ROW_SIZE:
        return RowConvolution(module, width)
    if module.in_channels == 1 and module.out_channels % 8 == 0:
        return WindowConvolution(module)
    return module


def for_cpu(network: nn.Sequential, shape: tuple[int, int, int]) -> nn.Sequential:
    """Rebuild a network with convolutions in forms that are faster on CPUs for images of a shape.

    Layers keep their names and share their parameters.
    """
    parts = nn.Sequential()
    images = torch.zeros(1, *shape)
    for name, module in network.named_children():
        parts.add_module(name, _on_cpu(module, images.shape[-1]))
        with torch.no_grad():
            images = module(images)
    return parts


def for_one_client(network: nn.Sequential) -> nn.Sequential:
    """Rebuild a network with layers that are faster on CPUs but cannot be mapped over stacked clients.

    Layers keep their names; those with parameters are shared.
    """
    parts = nn.Sequential()
    for name, module in network.named_children():
        parts.add_module(name, ChannelsLastMaxPool() if _halves(module) else module)
    return parts


def _halves(module: nn.Module) -> bool:
    """Return True for 2x2 max-pooling with stride 2 and nothing else."""
    if type(module) is not nn.MaxPool2d:
        return False
    return str(module) == str(nn.MaxPool2d(2)) and not module.return_indices


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
        """Map `[batch, inputs]` to `[batch, outputs]`."""
        return torch.addmm(self.bias, inputs, self.weight)
