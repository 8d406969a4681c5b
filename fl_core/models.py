"""Models as functions of one flat parameter vector.

A federation stacks, clips, noises and averages parameters, so it keeps them as `[..., size]` tensors; a `Model` knows
how such a vector is laid out (its parameters and layers in order, its head) and computes logits from it. Adding a
model is one builder and one line of `MODELS`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

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


def _convolutions(shape: Shape, widths: list[int], kernel: int, hidden: list[int], classes: int) -> nn.Sequential:
    """Blocks of same-padded convolution, 2x2 max-pooling and ReLU, then fully connected layers."""
    channels, height, width = shape
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for index, outputs in enumerate(widths, start=1):
        parts[f"conv{index}"] = nn.Conv2d(channels, outputs, kernel, padding=kernel // 2)
        parts[f"pool{index}"] = nn.MaxPool2d(2)  # before the ReLU, which is the same and a quarter of the work
        parts[f"relu{index}"] = nn.ReLU()
        channels, height, width = outputs, height // 2, width // 2
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


def _with_group_norm(network: nn.Sequential) -> nn.Sequential:
    """The same network with a GroupNorm after every convolution (batch statistics would be private)."""
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for name, module in network.named_children():
        parts[name] = module
        if isinstance(module, nn.Conv2d):
            parts[f"{name}_norm"] = nn.GroupNorm(math.gcd(8, module.out_channels), module.out_channels)
    return nn.Sequential(parts)


@dataclass(frozen=True)
class ModelEntry:
    """A line of the catalogue."""

    build: Builder
    summary: str


MODELS: dict[str, ModelEntry] = {
    "mlp": ModelEntry(_mlp, "one hidden layer of 32 units"),
    "cnn2": ModelEntry(_cnn2, "2 convolutions, 2 fully connected layers"),
    "cnn2-strided": ModelEntry(
        _cnn2_strided, "2 convolutions of stride 2 (8, 16 channels), 2 fully connected layers: for long runs"
    ),
    "cnn3": ModelEntry(_cnn3, "3 convolutions (32, 64, 64), 3 fully connected layers"),
    "lenet": ModelEntry(_lenet, "LeNet-5: convolutions of 6 and 16 channels, then 120, 84 units; from 28x28 pixels"),
}


def build_model(name: str, shape: Shape, classes: int) -> Model:
    """The catalogue's model for images of a shape; `<name>-groupnorm` puts a GroupNorm after each convolution.

    Raises:
        InputError: the name is unknown, or the images are too small for the model.
    """
    base = name.removesuffix(GROUP_NORM_SUFFIX)
    if base not in MODELS:
        raise unknown_name("Model", name, MODELS)
    normalised = base != name
    if normalised and base == "mlp":
        raise InputError("Model 'mlp-groupnorm' does not exist, because 'mlp' has no convolution to normalise.")

    def build() -> nn.Sequential:
        network = MODELS[base].build(shape, classes)
        return _with_group_norm(network) if normalised else network

    return Model(name, shape, classes, build)
