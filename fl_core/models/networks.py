"""The networks of the catalogue, made for a shape of images and a number of classes.

To add one for good, write a builder here and a line in `fl_core.models.catalog`.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional

from fl_core.base.errors import require
from fl_core.models.dropout import Dropout
from fl_core.models.entry import Shape
from fl_core.models.layers import Dense


def _is_small(shape: Shape) -> bool:
    """Return True for thumbnails (the 8x8 digits), which get narrower layers."""
    return max(shape[1:]) <= 16


def mlp(shape: Shape, classes: int, hidden: int = 32) -> nn.Sequential:
    """Build a network of one hidden layer."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=Dense(math.prod(shape), hidden),
            relu1=nn.ReLU(),
            fc2=Dense(hidden, classes),
        )
    )


def _convolutions(
    shape: Shape, widths: list[int], kernel: int, hidden: list[int], classes: int, per_stage: int = 1
) -> nn.Sequential:
    """Build same-padded convolutions with ReLU, 2x2 max-pooling after each `per_stage`, then fully connected layers."""
    channels, height, width = shape
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for index, outputs in enumerate(widths, start=1):
        parts[f"conv{index}"] = nn.Conv2d(channels, outputs, kernel, padding=kernel // 2)
        if index % per_stage == 0:
            parts[f"pool{index}"] = nn.MaxPool2d(2)  # before the ReLU, which is the same and a quarter of the work
            height, width = height // 2, width // 2
        parts[f"relu{index}"] = nn.ReLU()
        channels = outputs
    require(height > 0 and width > 0, f"The input of {shape[1]}x{shape[2]} pixels is too small for this model.")
    parts["flatten"] = nn.Flatten()
    return _fully_connected(parts, channels * height * width, hidden, classes)


def _fully_connected(parts: OrderedDict[str, nn.Module], inputs: int, hidden: list[int], classes: int) -> nn.Sequential:
    for index, outputs in enumerate([*hidden, classes], start=1):
        parts[f"fc{index}"] = Dense(inputs, outputs)
        if index <= len(hidden):
            parts[f"fc{index}_relu"] = nn.ReLU()
        inputs = outputs
    return nn.Sequential(parts)


def cnn2(shape: Shape, classes: int) -> nn.Sequential:
    """Build two convolutions and two fully connected layers."""
    if _is_small(shape):
        return _convolutions(shape, [8, 16], 3, [32], classes)
    return _convolutions(shape, [16, 32], 5, [64], classes)


def cnn2_wide(shape: Shape, classes: int) -> nn.Sequential:
    """Build the network that McMahan et al. (2017, section 3) train on MNIST."""
    return _convolutions(shape, [32, 64], 5, [512], classes)


def cnn2_strided(shape: Shape, classes: int) -> nn.Sequential:
    """Build two convolutions of stride 2, in the place of pooling, and two fully connected layers."""
    channels, height, width = shape
    small = _is_small(shape)
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 8, 3 if small else 5, stride=2, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(8, 16, 3, stride=2, padding=1 if small else 0),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    # a 28x28 image becomes 13x13 and 6x6, a 32x32 one 15x15 and 7x7, a thumbnail a half and a quarter, rounded up
    side = [-(-size // 4) if small else (size - 3) // 4 for size in (height, width)]
    require(min(side) > 0, f"The input of {height}x{width} pixels is too small for this model.")
    return _fully_connected(parts, 16 * math.prod(side), [32], classes)


def cnn3(shape: Shape, classes: int) -> nn.Sequential:
    """Build three convolutions and three fully connected layers."""
    return _convolutions(shape, [32, 64, 64], 3, [120, 84], classes)


def lenet(shape: Shape, classes: int) -> nn.Sequential:
    """Build LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling."""
    channels, height, width = shape
    require(
        min(height, width) >= 28,
        f"Model 'lenet' needs images of at least 28x28 pixels, but these have {height}x{width}; use mlp or cnn2.",
    )
    padding = 2 if height < 32 else 0  # the 5x5 kernels were made for 32x32 images
    side = [(size + 2 * padding - 4) // 2 for size in (height, width)]
    side = [(size - 4) // 2 for size in side]
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 6, 5, padding=padding),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(6, 16, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    return _fully_connected(parts, 16 * side[0] * side[1], [120, 84], classes)


def cnn8(shape: Shape, classes: int) -> nn.Sequential:
    """Build six convolutions in three pooled stages and two fully connected layers."""
    return _convolutions(shape, [32, 32, 64, 64, 128, 128], 3, [128], classes, per_stage=2)


def dropout_cnn(shape: Shape, classes: int, relus: bool) -> nn.Sequential:
    """Build FedDPA's network for SVHN, or that for FEMNIST, which has a ReLU after the second convolution alone."""
    channels, height, width = shape
    side = [(size - 4) // 2 for size in (height, width)]
    require(min(side) > 0, f"The input of {height}x{width} pixels is too small for this model.")
    parts: OrderedDict[str, nn.Module] = OrderedDict(conv1=nn.Conv2d(channels, 32, 3))
    if relus:
        parts["relu1"] = nn.ReLU()
    parts.update(conv2=nn.Conv2d(32, 64, 3), pool2=nn.MaxPool2d(2), relu2=nn.ReLU(), dropout1=Dropout(0.25))
    parts.update(flatten=nn.Flatten(), fc1=Dense(64 * math.prod(side), 128))
    if relus:
        parts["fc1_relu"] = nn.ReLU()
    parts.update(dropout2=Dropout(0.5), fc2=Dense(128, classes))
    return nn.Sequential(parts)


def feddpa_cifar(shape: Shape, classes: int) -> nn.Sequential:
    """Build FedDPA's network for CIFAR-10."""
    return _convolutions(shape, [16, 32, 32], 3, [512, 128], classes)


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added (He et al. 2016, figure 2), with GroupNorm.

    Where the shape changes, the input is projected by a 1x1 convolution or, as in their networks for CIFAR-10
    (option A), sampled and padded with zero channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, projects: bool):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _group_norm(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _group_norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if projects and (stride, inputs) != (1, outputs):
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, norm=_group_norm(outputs)))
        elif (stride, inputs) != (1, outputs):
            self.shortcut = _SampleAndPad(stride, outputs - inputs)
        self.relu2 = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        inner = self.relu1(self.norm1(self.conv1(images)))
        outputs: Tensor = self.relu2(self.norm2(self.conv2(inner)) + self.shortcut(images))
        return outputs


class _SampleAndPad(nn.Module):
    """Every `stride`-th pixel, with channels of zeros after the others."""

    def __init__(self, stride: int, channels: int):
        super().__init__()
        self._stride, self._channels = stride, channels

    def forward(self, images: Tensor) -> Tensor:
        return functional.pad(images[..., :: self._stride, :: self._stride], (0, 0, 0, 0, 0, self._channels))


def _residual(shape: Shape, widths: list[int], blocks: int, projects: bool, classes: int) -> nn.Sequential:
    """Build a 3x3 convolution, stages of residual blocks (each after the first halves the sides), mean and head."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(shape[0], widths[0], 3, padding=1, bias=False), norm=_group_norm(widths[0]), relu=nn.ReLU()
    )
    channels = widths[0]
    for stage, width in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            parts[f"stage{stage}_block{block}"] = _ResidualBlock(channels, width, stride, projects)
            channels = width
    parts.update(mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=Dense(channels, classes))
    return nn.Sequential(parts)


def resnet20(shape: Shape, classes: int) -> nn.Sequential:
    """Build ResNet-20 for CIFAR (He et al. 2016), with GroupNorm."""
    return _residual(shape, [16, 32, 64], 3, False, classes)


def resnet18(shape: Shape, classes: int) -> nn.Sequential:
    """Build ResNet-18 with a stem of 3x3 (He et al. 2016), with GroupNorm."""
    return _residual(shape, [64, 128, 256, 512], 2, True, classes)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(8, channels), channels)


def with_group_norm(network: nn.Sequential) -> nn.Sequential:
    """Insert a GroupNorm after every convolution of a network.

    Batch normalisation would mix the samples of a client and make its statistics private outputs.
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for name, module in network.named_children():
        parts[name] = module
        if isinstance(module, nn.Conv2d):
            parts[f"{name}_norm"] = _group_norm(module.out_channels)
    return nn.Sequential(parts)
