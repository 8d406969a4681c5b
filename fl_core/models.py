"""Models as functions of one flat parameter vector.

A federation stacks, clips, noises and averages parameters, so it keeps them as `[..., size]` tensors; a `Model` knows
how such a vector is laid out (its parameters and layers in order, its head) and computes logits from it. Adding a
model is one builder and one line of `MODELS`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fl_core.errors import InputError, require, unknown_name
from fl_core.layers import Dense, for_cpu, for_one_client
from fl_core.streams import stream_seed

Shape = tuple[int, int, int]
Builder = Callable[[Shape, int], nn.Sequential]
GROUP_NORM_SUFFIX = "-groupnorm"


@dataclass(frozen=True)
class Span:
    """A named contiguous stretch `start:stop` of the flat parameter vector."""

    name: str
    start: int
    stop: int

    @property
    def slice(self) -> slice:
        """The stretch as a slice."""
        return slice(self.start, self.stop)


class Model:
    """A network over a flat parameter vector.

    Attributes:
        name: catalogue name.
        shape: (channels, height, width) of an image.
        classes: number of logits.
        layers: one span per layer with parameters, in order; the last is the head.
        convolutions: those of the layers that are convolutions (weights and bias).
        tensors: one span per parameter tensor (`conv1.weight`, `conv1.bias`, ...), in order.
        size: number of parameters.
        activations: floats a forward pass of one sample produces (for memory estimates).
    """

    def __init__(self, name: str, shape: Shape, classes: int, build: Callable[[], nn.Sequential]):
        self.name, self.shape, self.classes = name, shape, classes
        self._build = build
        self._module = build()
        self._on_cpu = for_cpu(self._module, shape)
        self._alone = for_one_client(self._on_cpu)
        self._shapes: dict[str, torch.Size] = {}
        spans: OrderedDict[str, list[int]] = OrderedDict()
        tensors: list[Span] = []
        position = 0
        for parameter, value in self._module.named_parameters():
            self._shapes[parameter] = value.shape
            tensors.append(Span(parameter, position, position + value.numel()))
            span = spans.setdefault(parameter.rpartition(".")[0], [position, position])
            position += value.numel()
            span[1] = position
        self.size = position
        self.layers = tuple(Span(layer, *bounds) for layer, bounds in spans.items())
        self.convolutions = tuple(
            layer for layer in self.layers if isinstance(self._module.get_submodule(layer.name), nn.Conv2d)
        )
        self.tensors = tuple(tensors)
        self.activations = _count_activations(self._module, shape)

    @property
    def head(self) -> Span:
        """The last layer."""
        return self.layers[-1]

    @property
    def body(self) -> Span:
        """Everything before the head."""
        return Span("body", 0, self.head.start)

    def span(self, part: str) -> Span:
        """The stretch of `all`, `head`, `body` or `none` of the parameters."""
        spans = {
            "all": Span("all", 0, self.size),
            "head": self.head,
            "body": self.body,
            "none": Span("none", self.size, self.size),
        }
        if part not in spans:
            raise unknown_name("Model part", part, spans)
        return spans[part]

    def initial(self, seed: int, device: torch.device | str = "cpu") -> Tensor:
        """Parameters `[size]` drawn by the layers' own initialisation from the run's init stream."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "init"))
            module = self._build()
        flat = torch.cat([value.detach().reshape(-1) for value in module.parameters()])
        return flat.to(device)

    def make_module(self) -> nn.Sequential:
        """A new module of this architecture, with parameters of its own."""
        return self._build()

    def unflatten(self, flat: Tensor, channels_last: bool = False) -> dict[str, Tensor]:
        """Views of a `[size]` vector as the module's named parameters."""
        values = {}
        sizes = [shape.numel() for shape in self._shapes.values()]
        for (name, shape), piece in zip(self._shapes.items(), flat.split(sizes), strict=True):
            value = piece.view(shape)
            if channels_last and value.dim() == 4:
                value = value.contiguous(memory_format=torch.channels_last)
            values[name] = value
        return values

    def logits(self, flat: Tensor, images: Tensor) -> Tensor:
        """Logits `[batch, classes]` of float images `[batch, channels, height, width]` under parameters `[size]`."""
        network = self._on_cpu if images.device.type == "cpu" else self._module
        outputs: Tensor = functional_call(network, self.unflatten(flat), (images,))
        return outputs

    @property
    def parametric_layers(self) -> list[nn.Module]:
        """The plain modules behind `layers`."""
        return [self._module.get_submodule(layer.name) for layer in self.layers]

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest layer."""
        return max(layer.stop - layer.start for layer in self.layers)

    def output_shapes(self, batch: int) -> list[torch.Size]:
        """Shapes of what each of `layers` puts out for a batch of images."""
        shapes: dict[str, torch.Size] = {}
        hooks = {
            layer.name: lambda _, __, output, name=layer.name: shapes.update({name: output.shape})
            for layer in self.layers
        }
        with _hooked(self._module, hooks), torch.no_grad():
            self._module(torch.zeros(batch, *self.shape))
        return [shapes[layer.name] for layer in self.layers]

    def tapped_logits(self, flat: Tensor, images: Tensor, added: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Logits where something is added to each layer's output, and each layer's inputs.

        Args:
            flat: parameters `[size]`.
            images: `[batch, channels, height, width]`.
            added: per entry of `layers`, of the shape in `output_shapes`.
        """
        network = self._on_cpu if images.device.type == "cpu" else self._module
        inputs: dict[str, Tensor] = {}

        def tap(name: str, nudge: Tensor) -> Callable[..., Tensor]:
            def hook(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
                inputs[name] = arguments[0]
                return output + nudge

            return hook

        hooks = {layer.name: tap(layer.name, nudge) for layer, nudge in zip(self.layers, added, strict=True)}
        with _hooked(network, hooks):
            logits: Tensor = functional_call(network, self.unflatten(flat), (images,))
        return logits, [inputs[layer.name] for layer in self.layers]

    def logits_alone(self, flat: Tensor, images: Tensor) -> Tensor:
        """The same by layers and layouts that are faster on a CPU, but cannot be mapped over stacked clients."""
        if images.device.type != "cpu":
            return self.logits(flat, images)
        outputs: Tensor
        if self.shape[0] >= 3:
            images = images.contiguous(memory_format=torch.channels_last)
            outputs = functional_call(self._on_cpu, self.unflatten(flat, channels_last=True), (images,))
        else:  # with one channel PyTorch cannot tell the layouts apart, and mixes them
            outputs = functional_call(self._alone, self.unflatten(flat), (images,))
        return outputs


@contextmanager
def _hooked(module: nn.Module, hooks: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Forward hooks on submodules by name, for as long as it lasts."""
    handles = [module.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _count_activations(module: nn.Module, shape: Shape) -> int:
    """Floats that the leaf modules produce for one sample."""
    total = 0

    def count(_: nn.Module, __: object, output: Tensor) -> None:
        nonlocal total
        total += output.numel()

    leaves = [leaf for leaf in module.modules() if not list(leaf.children())]
    handles = [leaf.register_forward_hook(count) for leaf in leaves]
    with torch.no_grad():
        module(torch.zeros(1, *shape))
    for handle in handles:
        handle.remove()
    return total


def _is_small(shape: Shape) -> bool:
    """Thumbnails (the 8x8 digits) get narrower layers."""
    return max(shape[1:]) <= 16


def _mlp(shape: Shape, classes: int) -> nn.Sequential:
    hidden = 32
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
    """Same-padded convolutions with ReLU, a 2x2 max-pooling after each `per_stage`, then fully connected layers."""
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
    """A 3x3 convolution, stages of residual blocks (each after the first halves the sides), mean and head."""
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


def _with_group_norm(network: nn.Sequential) -> nn.Sequential:
    """The same network with a GroupNorm after every convolution (batch statistics would be private)."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for name, module in network.named_children():
        parts[name] = module
        if isinstance(module, nn.Conv2d):
            parts[f"{name}_norm"] = _group_norm(module.out_channels)
    return nn.Sequential(parts)


@dataclass(frozen=True)
class ModelEntry:
    """A line of the catalogue.

    Attributes:
        build: the network for a shape of images and a number of classes.
        summary: what it is, in a line.
        unfit_for_norm: why there is no `-groupnorm` of it, where there is none.
    """

    build: Builder
    summary: str
    unfit_for_norm: str = ""


MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry(_mlp, "one hidden layer of 32 units", "it has no convolution to normalise"),
    "cnn2": ModelEntry(_cnn2, "2 convolutions, 2 fully connected layers"),
    "cnn2-strided": ModelEntry(
        _cnn2_strided, "2 convolutions of stride 2 (8, 16 channels), 2 fully connected layers: for long runs"
    ),
    "cnn3": ModelEntry(_cnn3, "3 convolutions (32, 64, 64), 3 fully connected layers"),
    "lenet": ModelEntry(_lenet, "LeNet-5: convolutions of 6 and 16 channels, then 120, 84 units; from 28x28 pixels"),
    "cnn8": ModelEntry(_cnn8, "6 convolutions in 3 pooled stages (32, 64, 128), 2 fully connected layers"),
    "resnet20": ModelEntry(
        _resnet20, "ResNet-20 of He et al. for CIFAR (16, 32, 64), with GroupNorm", "it has GroupNorm already"
    ),
    "resnet18": ModelEntry(
        _resnet18, "ResNet-18 with a 3x3 stem (64, 128, 256, 512), with GroupNorm", "it has GroupNorm already"
    ),
}


def build_model(name: str, shape: Shape, classes: int) -> Model:
    """The catalogue's model for images of a shape; `<name>-groupnorm` puts a GroupNorm after each convolution.

    Raises:
        InputError: the name is unknown, the model has no place for a GroupNorm, or the images are too small for it.
    """
    base = name.removesuffix(GROUP_NORM_SUFFIX)
    if base not in MODELS:
        raise unknown_name("Model", name, MODELS)
    normalised = base != name
    if normalised and MODELS[base].unfit_for_norm:
        raise InputError(f"Model '{name}' does not exist: use '{base}', because {MODELS[base].unfit_for_norm}.")

    def build() -> nn.Sequential:
        network = MODELS[base].build(shape, classes)
        return _with_group_norm(network) if normalised else network

    return Model(name, shape, classes, build)
