"""The networks of the catalogue; to add one for good, write a builder and add a line here."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError, require
from fl_core.models.dropout import Dropout
from fl_core.models.entry import ModelEntry, Shape, model_entry_of
from fl_core.models.layers import Dense

GROUP_NORM_SUFFIX = "-groupnorm"


def _is_small(shape: Shape) -> bool:
    """Return True for thumbnails (the 8x8 digits), which get narrower layers."""
    return max(shape[1:]) <= 16


def _mlp(shape: Shape, classes: int, hidden: int = 32) -> nn.Sequential:
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


def _cnn2(shape: Shape, classes: int) -> nn.Sequential:
    if _is_small(shape):
        return _convolutions(shape, [8, 16], 3, [32], classes)
    return _convolutions(shape, [16, 32], 5, [64], classes)


def _cnn2_strided(shape: Shape, classes: int) -> nn.Sequential:
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


def _cnn3(shape: Shape, classes: int) -> nn.Sequential:
    return _convolutions(shape, [32, 64, 64], 3, [120, 84], classes)


def _lenet(shape: Shape, classes: int) -> nn.Sequential:
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


def _cnn8(shape: Shape, classes: int) -> nn.Sequential:
    return _convolutions(shape, [32, 32, 64, 64, 128, 128], 3, [128], classes, per_stage=2)


def _with_dropout(shape: Shape, classes: int, relus: bool) -> nn.Sequential:
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


def _feddpa_cifar(shape: Shape, classes: int) -> nn.Sequential:
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


def _resnet20(shape: Shape, classes: int) -> nn.Sequential:
    return _residual(shape, [16, 32, 64], 3, False, classes)


def _resnet18(shape: Shape, classes: int) -> nn.Sequential:
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


_BUILT_IN: dict[str, ModelEntry] = {
    "mlp": ModelEntry(_mlp, "one hidden layer of 32 units", "it has no convolution to normalise"),
    "mlp-small": ModelEntry(
        partial(_mlp, hidden=8), "one hidden layer of 8 units", "it has no convolution to normalise"
    ),
    "mlp-wide": ModelEntry(
        partial(_mlp, hidden=128), "one hidden layer of 128 units", "it has no convolution to normalise"
    ),
    "cnn2": ModelEntry(_cnn2, "2 convolutions, 2 fully connected layers"),
    "cnn2-strided": ModelEntry(
        _cnn2_strided, "2 convolutions of stride 2 (8, 16 channels), 2 fully connected layers: for long runs"
    ),
    "cnn3": ModelEntry(_cnn3, "3 convolutions (32, 64, 64), 3 fully connected layers"),
    "lenet": ModelEntry(_lenet, "LeNet-5: convolutions of 6 and 16 channels, then 120, 84 units; from 28x28 pixels"),
    "cnn8": ModelEntry(_cnn8, "6 convolutions in 3 pooled stages (32, 64, 128), 2 fully connected layers"),
    "feddpa-svhn": ModelEntry(
        partial(_with_dropout, relus=True),
        "FedDPA's for SVHN: 2 convolutions (32, 64), dropout, 2 fully connected layers (128); 1.63 M parameters there",
    ),
    "feddpa-femnist": ModelEntry(
        partial(_with_dropout, relus=False),
        "FedDPA's for FEMNIST: as feddpa-svhn with fewer ReLUs; 1.21 M parameters there",
    ),
    "feddpa-cifar10": ModelEntry(
        _feddpa_cifar,
        "FedDPA's for CIFAR-10: 3 convolutions (16, 32, 32), 3 fully connected layers (512, 128); 0.34 M parameters "
        "there",
    ),
    "resnet20": ModelEntry(
        _resnet20, "ResNet-20 of He et al. for CIFAR (16, 32, 64), with GroupNorm", "it has GroupNorm already"
    ),
    "resnet18": ModelEntry(
        _resnet18, "ResNet-18 with a 3x3 stem (64, 128, 256, 512), with GroupNorm", "it has GroupNorm already"
    ),
}

MODELS = Catalogue("model", _BUILT_IN, model_entry_of)


def find_model(name: str) -> tuple[ModelEntry, bool]:
    """Look up a model, and whether it is the variant with GroupNorm.

    Raises:
        InputError: the name is unknown, its file cannot be imported, or the model has no such variant.
    """
    base = name.removesuffix(GROUP_NORM_SUFFIX)
    if base == name or name in MODELS.names() or base not in MODELS.names():
        return MODELS.find(name), False
    entry = MODELS.find(base)
    if entry.unfit_for_norm:
        raise InputError(f"Model '{name}' does not exist: use '{base}', because {entry.unfit_for_norm}.")
    return entry, True


def register_model(name: str, model: Any) -> str:
    """Enter a model under a name, for `--model NAME` and `model="NAME"` in this process and those it starts.

    Args:
        name: a word.
        model: an `nn.Module`, whose weights every run then starts from; or a class or function that is called with the
            images' shape (channels, height, width) and the number of classes, or with nothing, and returns a fresh one.

    Returns:
        The name.

    Raises:
        InputError: the name cannot be one or is built in, or it is no model. A network that clients cannot train side
            by side is refused where it is first built.
    """
    return MODELS.register(name, model)
