"""Models as functions of one flat parameter vector.

A federation stacks, clips, noises and averages parameters, so it keeps them as `[..., size]` tensors; a `Model` knows
how such a vector is laid out (its parameters and layers in order, its head) and computes logits from it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl_core.base.arguments import checked
from fl_core.base.streams import stream_seed
from fl_core.models.dropout import find_dropouts, hooked, scaling, unit_factors
from fl_core.models.entry import Shape
from fl_core.models.layers import for_cpu
from fl_core.models.layout import Layout, Span


class Model(Layout):
    """A network over a flat parameter vector.

    Attributes:
        shape: (channels, height, width) of an image.
        classes: number of logits.
        key: equal for models that compute the same; programs are kept by it.
        by_layer: True if each sample's gradient follows from the inputs and outputs of `layers` alone.
        activations: floats a forward pass of one sample produces (for memory estimates).
        dropouts: the layers that drop units in training, in order.
    """

    def __init__(self, name: str, shape: Shape, classes: int, build: Callable[[], nn.Sequential], key: Hashable = None):
        """Lay out the parameters of a network of this package; see `OwnModel` for others."""
        self.name, self.shape, self.classes = name, shape, classes
        self.key: Hashable = (name, shape, classes, key)
        self.by_layer = True
        self._build: Callable[[], nn.Module] = build
        network = build()
        self._module: nn.Module = network
        self._on_cpu: nn.Module = for_cpu(network, shape)
        self._lay_out(dict(network.named_parameters()))
        self.activations = _count_activations(network, shape)
        self.dropouts = find_dropouts(network, shape)

    def _lay_out(self, parameters: Mapping[str, Tensor]) -> None:
        """Place the parameters, and the layers that have them, in the flat vector."""
        self._shapes = {name: value.shape for name, value in parameters.items()}
        spans: OrderedDict[str, list[int]] = OrderedDict()
        tensors: list[Span] = []
        position = 0
        for parameter, value in parameters.items():
            tensors.append(Span(parameter, position, position + value.numel()))
            span = spans.setdefault(layer_of(parameter), [position, position])
            position += value.numel()
            span[1] = position
        self.size = position
        self.layers = tuple(Span(layer, *bounds) for layer, bounds in spans.items())
        modules = dict(self._module.named_modules())
        self.convolutions = tuple(layer for layer in self.layers if isinstance(modules.get(layer.name), nn.Conv2d))
        self.tensors = tuple(tensors)

    @checked
    def initial(self, seed: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw parameters `[size]` by the layers' own initialisation, from the run's stream `init`."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(seed, "init"))  # the CPU's alone: others stay as they are
            module = self._build()
        values = dict(module.named_parameters())
        flat = torch.cat([values[name].detach().reshape(-1) for name in self._shapes])
        return flat.to(device)

    def make_module(self) -> nn.Module:
        """Build a new module of this architecture, with parameters of its own."""
        return self._build()

    def unflatten(self, flat: Tensor, channels_last: bool = False) -> dict[str, Tensor]:
        """View a `[size]` vector as the module's named parameters."""
        values = {}
        sizes = [shape.numel() for shape in self._shapes.values()]
        for (name, shape), piece in zip(self._shapes.items(), flat.split(sizes), strict=True):
            value = piece.view(shape)
            if channels_last and value.dim() == 4:
                value = value.contiguous(memory_format=torch.channels_last)
            values[name] = value
        return values

    def logits(self, flat: Tensor, images: Tensor, dropped: Tensor | None = None) -> Tensor:
        """Compute logits `[batch, classes]` under parameters `[size]`.

        Args:
            flat: parameters `[size]`.
            images: floats `[batch, channels, height, width]`.
            dropped: factors of the units `[batch, units]` from `unit_factors`; None drops none.
        """
        return self._called(self._network(images.device), self.unflatten(flat), images, dropped)

    def _called(self, network: nn.Module, values: dict[str, Tensor], images: Tensor, dropped: Tensor | None) -> Tensor:
        """Call a form of the network, with the factors of its units if they are given."""
        hooks = {} if dropped is None else scaling(self.dropouts, dropped)
        with hooked(network, hooks):
            outputs: Tensor = functional_call(network, values, (images,))
        return outputs

    def unit_factors(self, keys: Tensor, number: int) -> Tensor:
        """Draw the factors of the units that dropout scales `[..., units]`; arguments as of `dropout.unit_factors`."""
        return unit_factors(self.dropouts, keys, number)

    def _network(self, device: torch.device) -> nn.Module:
        """Pick the form of the network that maps over stacked clients on a device."""
        return self._on_cpu if device.type == "cpu" else self._module

    @property
    def parametric_layers(self) -> list[nn.Module]:
        """Plain modules behind `layers`, in order."""
        return [self._module.get_submodule(layer.name) for layer in self.layers]

    def output_shapes(self, batch: int) -> list[torch.Size]:
        """Compute the shapes of the outputs of `layers` for a batch of images."""
        shapes: dict[str, torch.Size] = {}
        hooks = {
            layer.name: lambda _, __, output, name=layer.name: shapes.update({name: output.shape})
            for layer in self.layers
        }
        with hooked(self._module, hooks), torch.no_grad():
            self._module(torch.zeros(batch, *self.shape))
        return [shapes[layer.name] for layer in self.layers]

    def tapped_logits(self, flat: Tensor, images: Tensor, added: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute logits with a tensor added to each layer's output, and return each layer's inputs too.

        Gradients by the added tensors are those by the layers' outputs, which is how per-sample gradients are taken.

        Args:
            flat: parameters `[size]`.
            images: `[batch, channels, height, width]`.
            added: per entry of `layers`, of the shape in `output_shapes`.
        """
        network = self._network(images.device)
        inputs: dict[str, Tensor] = {}

        def tap(name: str, nudge: Tensor) -> Callable[..., Tensor]:
            def hook(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
                inputs[name] = arguments[0]
                return output + nudge

            return hook

        hooks = {layer.name: tap(layer.name, nudge) for layer, nudge in zip(self.layers, added, strict=True)}
        with hooked(network, hooks):
            logits: Tensor = functional_call(network, self.unflatten(flat), (images,))
        return logits, [inputs[layer.name] for layer in self.layers]

    def logits_alone(self, flat: Tensor, images: Tensor, dropped: Tensor | None = None) -> Tensor:
        """Compute `logits` in a layout that is faster on a CPU but cannot be mapped over stacked clients."""
        if images.device.type != "cpu":
            return self.logits(flat, images, dropped)
        # With one channel PyTorch cannot tell the layouts apart, and mixes them.
        last = self.shape[0] > 1
        images = images.contiguous(memory_format=torch.channels_last) if last else images
        return self._called(self._on_cpu, self.unflatten(flat, channels_last=last), images, dropped)


def layer_of(parameter: str) -> str:
    """Name the layer of a parameter: the module that has it, or itself where that is the whole network."""
    return parameter.rpartition(".")[0] or parameter


def _count_activations(module: nn.Module, shape: Shape) -> int:
    """Count the floats that the leaf modules produce for one sample."""
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
