"""Checks of a user's network: clients must be able to train it side by side, and nothing may leave them unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.fx import GraphModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedParameter

from fl_core.base.errors import InputError, require
from fl_core.base.sources import told
from fl_core.models.entry import Shape
from fl_core.models.tracing import trace

_BATCH = 3
_CONTROL_FLOW = ("data-dependent", "control flow", "_local_scalar_dense", "item()", "is_nonzero")


def built(make: Callable[[], Any], shape: Shape, who: str) -> nn.Module:
    """Build a user's network, and let lazy layers take their sizes.

    Raises:
        InputError: the builder raises, or returns no module.
    """
    try:
        network = make()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{who} cannot be built for images of {_by(shape)}: {told(error)}.") from error
    require(
        isinstance(network, nn.Module), f"{who} was built as {type(network).__name__}, but it must be an nn.Module."
    )
    module: nn.Module = network
    require(not isinstance(module, torch.jit.ScriptModule), f"{who} is TorchScript; give the module it is made of.")
    if any(isinstance(one, UninitializedParameter) for one in module.parameters()):
        _forward(module, torch.zeros(1, *shape), who)
    return module


def _by(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _forward(network: nn.Module, images: Tensor, who: str) -> Any:
    try:
        with torch.no_grad():
            return network(images)
    except Exception as error:
        raise InputError(f"{who} fails on images of shape {tuple(images.shape)}: {told(error)}.") from error


def check_layers(network: nn.Module, who: str) -> None:
    """Refuse layers whose training a federation cannot repeat or account for, and parameters of other types.

    Raises:
        InputError: a layer draws random numbers or keeps statistics, or there are no parameters of 32-bit floats.
    """
    for name, layer in network.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training:
            raise InputError(
                f"{who} has the {type(layer).__name__} '{name}', whose statistics mix samples and would leave the "
                "clients without noise; use GroupNorm, or call .eval() on it to keep statistics that it has."
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise InputError(
                f"{who} has the {type(layer).__name__} '{name}', whose draws no seed of a run repeats; take "
                "fl_core.models.dropout.Dropout in its place, leave it out or call .eval() on it."
            )
    trained = {name: one for name, one in network.named_parameters() if one.requires_grad}
    require(bool(trained), f"{who} has no parameters to train.")
    for name, one in network.named_parameters():
        require(
            one.dtype == torch.float32,
            f"{who} has the parameter '{name}' of {one.dtype}, but clients train torch.float32; call .float() on it.",
        )


def check_outputs(network: nn.Module, shape: Shape, classes: int, who: str) -> None:
    """Refuse a network that does not map each image, by itself, to one number per class, the same each time.

    Raises:
        InputError: it fails, gives something else, draws random numbers, changes its buffers or its input, or mixes
            samples.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(_BATCH, *shape, generator=generator)
    kept, buffers = images.clone(), {name: one.clone() for name, one in network.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        first = _forward(network, images, who)
        drawn = not torch.equal(before, torch.get_rng_state())
    require(not drawn, f"{who} draws random numbers in a forward pass, which no seed of a run repeats; leave that out.")
    require(isinstance(first, Tensor), f"{who} gives a {type(first).__name__}, but it must give one tensor of logits.")
    require(
        tuple(first.shape) == (_BATCH, classes),
        f"{who} gives outputs of shape {tuple(first.shape)} for {_BATCH} images, but {classes} classes need "
        f"({_BATCH}, {classes}).",
    )
    require(first.dtype == torch.float32, f"{who} gives {first.dtype}, but logits must be torch.float32.")
    require(torch.equal(images, kept), f"{who} changes the images it is given in place; let it work on a copy.")
    for name, value in network.named_buffers():
        require(
            torch.equal(value, buffers[name]),
            f"{who} changes its buffer '{name}' in a forward pass, which would leave the clients without noise.",
        )
    again, alone = _forward(network, images, who), _forward(network, images[:1], who)
    require(
        torch.equal(first, again) or bool(first.isnan().any()),
        f"{who} gives different logits for the same images, so that no run could be repeated.",
    )
    require(
        torch.allclose(first[:1], alone, rtol=1e-3, atol=1e-4, equal_nan=True),
        f"{who} gives an image other logits beside others than alone, but samples may not mix.",
    )


def check_stacked(logits: Callable[[Tensor, Tensor], Tensor], flat: Tensor, shape: Shape, who: str) -> int:
    """Refuse a network that cannot be traced, or mapped over stacked clients and differentiated.

    Args:
        logits: function of parameters `[size]` and images `[batch, ...]`.
        flat: parameters `[size]`.
        shape: of an image.
        who: for error messages.

    Returns:
        Floats that a forward pass of one sample produces.

    Raises:
        InputError: it decides by the values of tensors, or cannot be mapped.
    """

    def forward_of(vector: Tensor, inputs: Tensor) -> Tensor:
        return logits(vector, inputs)

    images = torch.rand(2, _BATCH, *shape, generator=torch.Generator().manual_seed(1))
    stacked = torch.stack([flat, flat])

    def losses(vectors: Tensor, inputs: Tensor) -> Tensor:
        leaf = vectors.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(vmap(logits)(leaf, inputs).square().sum(), leaf)
        return gradient

    try:
        forward = trace(forward_of, flat.clone(), images[0].clone())
        with torch.no_grad():
            expected, found = logits(flat, images[0]), vmap(logits)(stacked, images)[0]
        trace(losses, stacked.clone(), images.clone())
    except InputError:
        raise
    except Exception as error:
        text = str(error)
        if any(words in text for words in _CONTROL_FLOW):
            raise InputError(
                f"{who} decides by the values of its tensors (`if`, `.item()`), which cannot be done for many clients "
                "at once; write it with torch.where."
            ) from error
        raise InputError(f"{who} cannot be computed for many clients at once: {told(error)}.") from error
    require(
        torch.allclose(expected, found, rtol=1e-3, atol=1e-4, equal_nan=True),
        f"{who} gives other logits for stacked clients than for one.",
    )
    return _activations(forward)


def _activations(program: GraphModule) -> int:
    """Count the floats per sample that a traced forward pass produces."""
    total = 0
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        total += value.numel() if isinstance(value, Tensor) else 0
    return max(1, total // _BATCH)


def last_layer(network: nn.Module, shape: Shape) -> str:
    """Find the layer with parameters of its own that computes last, by name; empty where none is called as a module."""
    called: list[str] = []
    handles = [
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, layer in network.named_modules()
        if name and any(one.requires_grad for one in layer.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            network(torch.zeros(1, *shape))
    finally:
        for handle in handles:
            handle.remove()
    return called[-1] if called else ""


def same_function(one: nn.Module, faster: nn.Module, shape: Shape) -> bool:
    """Return True if another form of a network computes what the network does, also mapped over stacked clients."""
    images = torch.rand(2, _BATCH, *shape, generator=torch.Generator().manual_seed(2))
    last = images[0].contiguous(memory_format=torch.channels_last)
    try:
        with torch.no_grad():
            expected = one(images[0])
            found = (faster(images[0]), faster(last), vmap(faster)(images)[0])
    except Exception:  # a layer of a user's meets a layout that it was not written for
        return False
    return all(torch.allclose(expected, each, rtol=1e-4, atol=1e-5) for each in found)
