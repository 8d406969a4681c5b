"""Models by name: networks of this package, and a user's own, which are checked when they are built."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fl_core.base.arguments import checked
from fl_core.base.bounds import count
from fl_core.base.errors import InputError
from fl_core.base.streams import stream_seed
from fl_core.models.catalog import GROUP_NORM_SUFFIX, MODELS, find_model
from fl_core.models.checks import built, check_layers, check_outputs, check_stacked, last_layer, same_function
from fl_core.models.dropout import find_dropouts
from fl_core.models.entry import ModelEntry, Shape
from fl_core.models.layers import for_cpu
from fl_core.models.model import Model, layer_of
from fl_core.models.networks import with_group_norm

_SIDE = count(1, 100_000, "no image is larger")
_CLASSES = count(1, 1_000_000, "no dataset has more")


class OwnModel(Model):
    """A user's network: any module that `torch.func` can call as a function of its parameters.

    Parameters that need no gradient, and buffers, are constants. The layer that computes last is the head.
    """

    def __init__(self, name: str, shape: Shape, classes: int, build: Callable[[], Any], key: Hashable):
        """Build the network and lay out its parameters.

        Raises:
            InputError: clients cannot train it side by side; the sentence names what cannot be done.
        """
        self.name, self.shape, self.classes = name, shape, classes
        self.key = (name, shape, classes, key)
        self.by_layer = False
        who = f"model '{name}'"
        self._build = partial(built, build, shape, who)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(0, "init"))  # constants of its own are the same in every run
            self._module = self._build()
        check_layers(self._module, who)
        check_outputs(self._module, shape, classes, who)
        self._on_cpu = self._module
        self._elsewhere: dict[torch.device, nn.Module] = {}
        trained = {parameter: one for parameter, one in self._module.named_parameters() if one.requires_grad}
        head = last_layer(self._module, shape)
        self._lay_out(dict(sorted(trained.items(), key=lambda item: layer_of(item[0]) == head)))
        self._take_faster_forms()
        flat = torch.cat([trained[name].detach().reshape(-1) for name in self._shapes])
        self.activations = check_stacked(self.logits, flat, shape, who)
        self.dropouts = find_dropouts(self._module, shape)

    def _take_faster_forms(self) -> None:
        """Swap layers for faster ones where the network is a plain sequence and still computes the same."""
        network = self._module
        if type(network) is nn.Sequential and len(list(network.named_children())) == len(network):
            faster = for_cpu(network, self.shape)
            if same_function(network, faster, self.shape):
                self._on_cpu = faster

    @override
    def initial(self, seed: int, device: torch.device | str = "cpu") -> Tensor:
        try:
            return super().initial(seed, device)
        except (KeyError, RuntimeError) as error:
            raise InputError(f"model '{self.name}' is built with other parameters every time.") from error

    @override
    def _network(self, device: torch.device) -> nn.Module:
        if device.type == "cpu":
            return self._on_cpu
        if device not in self._elsewhere:  # with its constants
            self._elsewhere[device] = copy.deepcopy(self._module).to(device)
        return self._elsewhere[device]

    @override
    def logits_alone(self, flat: Tensor, images: Tensor, dropped: Tensor | None = None) -> Tensor:
        if self._on_cpu is self._module:  # layouts are its own business
            return self.logits(flat, images, dropped)
        return super().logits_alone(flat, images, dropped)


@checked
def build_model(name: Any, shape: Shape, classes: int) -> Model:
    """Build a model for images of a shape; `<name>-groupnorm` puts a GroupNorm after each convolution of a sequence.

    Raises:
        InputError: the name is unknown, the model has no place for a GroupNorm, the images are too small for it, or it
            is a user's network that clients cannot train side by side.
    """
    for side in shape:
        _SIDE.check("A side of the images", side)
    _CLASSES.check("classes", classes)
    name = MODELS.name_of(name)
    entry, normalised = find_model(name)

    built_in = MODELS.origin(name.removesuffix(GROUP_NORM_SUFFIX) if normalised else name).built_in
    build = partial(_build, entry, shape, classes, normalised)
    return (Model if built_in else OwnModel)(name, shape, classes, build, entry)


def _build(entry: ModelEntry, shape: Shape, classes: int, normalised: bool) -> Any:
    network = entry.build(shape, classes)
    return with_group_norm(network) if normalised and isinstance(network, nn.Sequential) else network
