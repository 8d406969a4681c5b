"""Gradients of a client's loss as traced tensor programs, one per shape, for one client or for stacked ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fl_core.models import Model
from fl_core.recipes.objective import Update
from fl_core.recipes.recipe import View
from fl_core.recipes.terms import Batch, Context, Forward

Program = Callable[..., tuple[Tensor, Tensor]]
"""Gradients and losses from (parameters, images, labels, context)."""


def stretch(model: Model, update: Update, parameters: Tensor) -> slice:
    """The stretch of the vectors that an update trains; `all` includes coordinates beyond the model."""
    return slice(0, parameters.shape[-1]) if update.trains == "all" else model.span(update.trains).slice


_programs: dict[tuple[object, ...], Program] = {}


def find_program(
    model: Model,
    view: View | None,
    update: Update,
    parameters: Tensor,
    images: Tensor,
    labels: Tensor,
    context: dict[str, Tensor],
) -> Program:
    """The traced program of these shapes: gradients of the trained stretch `[n, stretch]` and losses `[n]`."""
    shapes = tuple((name, value.shape) for name, value in sorted(context.items()))
    network = (model.name, model.shape, model.classes)
    key = (network, view, update, images.shape, parameters.device, torch.get_num_threads(), shapes)
    if key not in _programs:
        stacked = len(parameters) > 1
        make = _stacked_gradient if stacked else _single_gradient
        function = make(model, view, update)
        # A tensor passed twice would be traced as one input, so the program is traced on copies.
        copies = {name: value.clone() for name, value in context.items()}
        program = make_fx(function)(parameters.clone(), images.clone(), labels.clone(), copies)
        _drop_idle(program)
        _programs[key] = program
    return _programs[key]


def _drop_idle(program: GraphModule) -> None:
    """Take out operations that return what they are given: a third of a small model's, each with its overhead."""
    aten = torch.ops.aten
    same_if_shape = (aten.view.default, aten._unsafe_view.default, aten.expand.default)
    for node in program.graph.nodes:
        source = node.args[0] if node.args else None
        if node.op != "call_function" or not isinstance(source, Node):
            continue
        before, after = source.meta.get("tensor_meta"), node.meta.get("tensor_meta")
        same_shape = before is not None and after is not None and before.shape == after.shape
        idle = node.target is aten.alias.default or (node.target is aten.mul.Scalar and node.args[1] == 1)
        if idle or (node.target in same_if_shape and same_shape):
            node.replace_all_uses_with(source)
    program.graph.eliminate_dead_code()
    program.recompile()


def _split(model: Model, update: Update, parameters: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The trained stretch as a leaf of autograd, and the function that puts it back among the rest."""
    span = stretch(model, update, parameters)
    before, after = parameters[..., : span.start].detach(), parameters[..., span.stop :].detach()
    leaf = parameters[..., span].detach().requires_grad_()

    def join(trained: Tensor) -> Tensor:
        pieces = [piece for piece in (before, trained, after) if piece.shape[-1]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)

    return leaf, join


def _loss(model: Model, view: View | None, update: Update, forward: Forward) -> Callable[..., Tensor]:
    """Loss of one client's minibatch, from its vector `[size]`, images, labels and context."""

    def loss(vector: Tensor, images: Tensor, labels: Tensor, context: Context) -> Tensor:
        parameters, support = (vector, None) if view is None else view(model, vector, context)
        logits = forward(parameters, images)
        return update.loss(Batch(labels, logits, vector, support, context))

    return loss


def _ascended(update: Update, leaf: Tensor, gradient: Tensor) -> Tensor:
    """Where sharpness-aware minimisation looks: ρ up the gradient, relative to the coordinates' sizes if adaptive."""
    scale = leaf.detach().abs() if update.adaptive_sharpness else torch.ones_like(leaf)
    scaled = scale * gradient
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    moved: Tensor = leaf.detach() + update.sharpness * scale * scaled / norm.clamp_min(1e-12)
    return moved.requires_grad_()


def _differentiate(update: Update, leaf: Tensor, losses_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Gradient by the leaf of the summed losses, at the leaf or where the update looks instead; and the losses."""
    losses = losses_of(leaf)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    if update.sharpness:
        leaf = _ascended(update, leaf, gradient)
        (gradient,) = torch.autograd.grad(losses_of(leaf).sum(), leaf)
    return gradient, losses.detach()


def _single_gradient(model: Model, view: View | None, update: Update) -> Program:
    """One client: leading dimensions of 1 are dropped."""
    loss = _loss(model, view, update, model.logits_alone)

    def gradient(parameters: Tensor, images: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        leaf, join = _split(model, update, parameters[0])
        own = {name: value[0] for name, value in context.items()}
        with torch.enable_grad():
            result, losses = _differentiate(update, leaf, lambda at: loss(join(at), images[0], labels[0], own))
        return result.unsqueeze(0), losses.unsqueeze(0)

    return gradient


def _stacked_gradient(model: Model, view: View | None, update: Update) -> Program:
    """All clients at once: autograd stays outside the map, which is cheaper than mapping a gradient."""
    loss = vmap(_loss(model, view, update, model.logits))

    def gradient(parameters: Tensor, images: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        leaf, join = _split(model, update, parameters)
        with torch.enable_grad():
            return _differentiate(update, leaf, lambda at: loss(join(at), images, labels, context))

    return gradient
