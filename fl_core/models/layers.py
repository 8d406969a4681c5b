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
NARROW = 12
"""Outputs of a `Dense` below which its batched products are up to three times faster with the batch innermost."""
_STANDARD, _CHANNELS_LAST, _BATCH_LAST = (0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0)
"""Layouts of `[batch, channels, height, width]`: the dimensions in the order of memory, the innermost last."""


def _laid_out(images: Tensor, layout: tuple[int, ...]) -> Tensor:
    """Copy images into a layout if they are in another, by operations that `vmap` knows."""
    return images.permute(layout).contiguous().permute([layout.index(dimension) for dimension in range(4)])


class _Relaid(torch.autograd.Function):
    """Brings images into one layout, and their gradient into another."""

    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, layout: tuple[int, ...], back: tuple[int, ...]) -> Tensor:
        return _laid_out(images, layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, tuple[int, ...], tuple[int, ...]], output: Tensor) -> None:
        ctx.back = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _laid_out(gradient, ctx.back), None, None


class MaxPool(nn.Module):
    """`torch.nn.MaxPool2d(2)` in the layout in which PyTorch's CPU kernel is six times faster: channels-last.

    That kernel pools each channel of each image by itself. What `BatchLastConvolution` returns is therefore
    channels-last as well, with channels and images in each other's place.
    """

    def __init__(self, batch_last: bool):
        """Prepare for images that are batch-last in memory, or for any others."""
        super().__init__()
        self._batch_last = batch_last

    def forward(self, images: Tensor) -> Tensor:
        """Map `[batch, channels, height, width]` to `[batch, channels, height // 2, width // 2]`.

        The result is channels-last in memory where the images are, else contiguous.
        """
        if images.stride(1) == 1:
            return functional.max_pool2d(images, 2)
        if self._batch_last:
            pooled, inside = functional.max_pool2d(images.transpose(0, 1), 2).transpose(0, 1), _BATCH_LAST
        else:
            pooled = functional.max_pool2d(_Relaid.apply(images, _CHANNELS_LAST, _STANDARD), 2)
            inside = _CHANNELS_LAST
        outside: Tensor = _Relaid.apply(pooled, _STANDARD, inside)
        return outside


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

    def add_up(self, windows: Tensor, size: torch.Size) -> Tensor:
        """Transpose `cut` for images `[..., height, width, batch]` of a size: sum all places of each pixel."""
        (height, width, _), (rows, columns, batch) = size[-3:], windows.shape[-3:]
        images = windows.new_zeros(*windows.shape[:-5], height + 2 * self.margin, width + 2 * self.margin, batch)
        down, across = self.stride * (rows - 1) + 1, self.stride * (columns - 1) + 1
        # Windows that share their place in the kernel do not overlap, so kernel² strided additions do for all of them.
        for i in range(self.kernel):
            for j in range(self.kernel):
                place = images[..., i : i + down : self.stride, j : j + across : self.stride, :]
                place.add_(windows[..., i, j, :, :, :])
        return images[..., self.margin : self.margin + height, self.margin : self.margin + width, :]


@dataclass(frozen=True)
class _Rows:
    """Geometry of windows of whole rows, one below the other."""

    kernel: int
    margin: int

    def cut(self, images: Tensor) -> Tensor:
        """Cut images `[..., height, row]` into windows `[..., rows, kernel * row]`."""
        padded = functional.pad(images, (0, 0, self.margin, self.margin)) if self.margin else images
        return padded.unfold(-2, self.kernel, 1).transpose(-1, -2).flatten(-2)

    def add_up(self, windows: Tensor, size: torch.Size) -> Tensor:
        """Transpose `cut` for images `[..., height, row]` of a size: sum all places of each row."""
        (height, row), rows = size[-2:], windows.shape[-2]
        images = windows.new_zeros(*windows.shape[:-2], height + 2 * self.margin, row)
        for i in range(self.kernel):
            images[..., i : i + rows, :].add_(windows[..., row * i : row * (i + 1)])
        return images[..., self.margin : self.margin + height, :]


class _Cut(torch.autograd.Function):
    """Autograd function of `cut`; its derivative `add_up` is several times faster than the rules for views."""

    @staticmethod
    def forward(images: Tensor, where: _Windows | _Rows) -> Tensor:
        return where.cut(images)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Windows | _Rows], output: Tensor) -> None:
        ctx.size, ctx.where = inputs[0].shape, inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AddUp.apply(gradient, ctx.where, ctx.size), None

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int, None], images: Tensor, where: _Windows | _Rows) -> tuple[Tensor, int]:
        return _Cut.apply(images.movedim(in_dims[0], 0), where), 0


class _AddUp(torch.autograd.Function):
    """Autograd function of `add_up`, for derivatives of `_Cut`."""

    @staticmethod
    def forward(windows: Tensor, where: _Windows | _Rows, size: torch.Size) -> Tensor:
        return where.add_up(windows, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, _Windows | _Rows, torch.Size], output: Tensor) -> None:
        ctx.where = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Cut.apply(gradient, ctx.where), None, None

    @staticmethod
    def vmap(_: Any, in_dims: tuple[int, None, None], windows: Tensor, *rest: Any) -> tuple[Tensor, int]:
        return _AddUp.apply(windows.movedim(in_dims[0], 0), *rest), 0


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
        kernel, margin = convolution.kernel_size[0], int(convolution.padding[0])
        self._where = _Rows(kernel, margin)
        outputs = width + 2 * margin - kernel + 1
        ways = torch.arange(width).view(-1, 1, 1) + margin - torch.arange(outputs).view(-1, 1)
        # 1 where input column i meets output column j by column k of the kernel, [i, j, k]
        self.register_buffer("placement", (ways == torch.arange(kernel)).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map `[batch, channels, height, width]` to `[batch, outputs, ...]`, channels-last in memory."""
        inputs, outputs, _ = self.placement.shape
        kernels = self.weight.permute(3, 2, 1, 0)
        # The kernels are laid into the row matrix by a product with a constant, which autograd and vmap both know.
        placed = self.placement.flatten(0, 1) @ kernels.flatten(1)
        matrix = placed.view(inputs, outputs, *kernels.shape[1:]).permute(2, 0, 3, 1, 4)
        windows = _Cut.apply(images.permute(0, 2, 3, 1).flatten(2), self._where)
        result = torch.addmm(self.bias.repeat(outputs), windows.flatten(0, 1), matrix.flatten(3).flatten(0, 2))
        return result.view(*windows.shape[:2], outputs, -1).permute(0, 3, 1, 2)


class BatchLastConvolution(nn.Module):
    """A convolution of any stride as the matrix product of the kernels with all windows, the batch innermost.

    Windows are then copied in runs of a whole batch, and the product is as wide as a batch of images: on a CPU, small
    strided convolutions take two thirds of the time of PyTorch's, also stacked, where PyTorch's become grouped, and a
    network's first one, of which nobody needs the gradient by its input, half.
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
    # Small images make row matrices that are worth their zeros.
    if module.stride[0] == 1 and width <= 8 and module.weight[..., 0].numel() * width**2 <= ROW_SIZE:
        return RowConvolution(module, width)
    return BatchLastConvolution(module) if module.in_channels == 1 or module.stride[0] > 1 else module


def for_cpu(network: nn.Sequential, shape: tuple[int, int, int]) -> nn.Sequential:
    """Rebuild a network with convolutions and pooling in forms that are faster on CPUs for images of a shape.

    Layers keep their names and share their parameters.
    """
    parts = nn.Sequential()
    images = torch.zeros(1, *shape)
    batch_last = False
    for name, module in network.named_children():
        form = MaxPool(batch_last) if _halves(module) else _on_cpu(module, images.shape[-1])
        parts.add_module(name, form)
        batch_last = isinstance(form, BatchLastConvolution) or (batch_last and type(module) is nn.ReLU)
        with torch.no_grad():
            images = module(images)
    return parts


def _halves(module: nn.Module) -> bool:
    """Return True for 2x2 max-pooling with stride 2 and nothing else."""
    if type(module) is not nn.MaxPool2d:
        return False
    return str(module) == str(nn.MaxPool2d(2)) and not module.return_indices


class _NarrowProduct(torch.autograd.Function):
    """inputs @ weight + bias and its gradients, with the few outputs as rows of the products, the batch innermost."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias.unsqueeze(-1), weight.T, inputs.T).T

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient @ weight.T, (gradient.T @ inputs).T, gradient.sum(0)


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
        """Map `[batch, inputs]` to `[batch, outputs]`; few outputs are the outer dimension in memory."""
        if self.weight.shape[-1] < NARROW:
            outputs: Tensor = _NarrowProduct.apply(inputs, self.weight, self.bias)
            return outputs
        return torch.addmm(self.bias, inputs, self.weight)
