"""Gradients of clients' losses as traced tensor programs, one per shape, for one client or for stacked ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.func import vmap

from fl_core.models.model import Model
from fl_core.models.tracing import trace
from fl_core.recipes.objective import Update
from fl_core.recipes.parameterization import Parameterization
from fl_core.recipes.terms import Batch, Context, Forward
from fl_core.training.compiled import compiled
from fl_core.training.passes import simplify

Gradient = Callable[..., tuple[Tensor, Tensor]]
"""Gradients `[n, stretch]` and losses `[n]` from (parameters, images, labels, context)."""
PIECE_SIZE = 2**14
"""Floats per tensor of the model, over all stacked clients, from which a gradient is given tensor by tensor."""


@dataclass(frozen=True)
class Program:
    """A traced gradient.

    Attributes:
        trace: maps parameters, images, labels and entries of the context to the gradient's pieces and the losses.
        names: those entries of the context, in the order of the arguments.
        spans: stretch of the vectors of each piece.
    """

    trace: Callable[..., tuple[Sequence[Tensor], Tensor]]
    names: tuple[str, ...]
    spans: tuple[slice, ...]

    def run(
        self, parameters: Tensor, images: Tensor, labels: Tensor, context: Context
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Compute the gradient in pieces `[n, piece]` and the losses `[n]`."""
        return self.trace(parameters, images, labels, *(context[name] for name in self.names))


def stretch(model: Model, update: Update, parameters: Tensor) -> slice:
    """Return the stretch of the vectors that an update trains; `all` includes coordinates beyond the model."""
    return slice(0, parameters.shape[-1]) if update.trains == "all" else model.span(update.trains).slice


_programs: dict[tuple[object, ...], Program] = {}


def find_program(
    model: Model,
    view: Parameterization | None,
    update: Update,
    parameters: Tensor,
    images: Tensor,
    labels: Tensor,
    context: dict[str, Tensor],
    apart: bool = False,
    compile_it: bool = False,
) -> Program:
    """Find the traced program of these shapes, or trace it.

    Args:
        model: the network.
        view: the clients' models as functions of the parameters; None where they are the parameters.
        update: the phase of local training that is differentiated.
        parameters: models, of the shape that the program will be run on, as are the next three.
        images: minibatches.
        labels: classes of the minibatches.
        context: tensors of the clients' round.
        apart: True to allow the gradient in pieces, which saves putting those of the tensors together.
        compile_it: True for the program that `torch.compile` makes of it.
    """
    shapes = tuple((name, value.shape) for name, value in sorted(context.items()))
    widths = _widths(model, update, parameters, apart)
    how = (parameters.device, torch.get_num_threads(), compile_it)
    key = (model.key, view, update, images.shape, shapes, widths, *how)
    if key not in _programs:
        stacked = len(parameters) > 1
        make = _stacked_gradient if stacked else _single_gradient
        names = tuple(sorted(context))
        function = _in_pieces(make(model, view, update), names, widths)
        # A tensor passed twice would be traced as one input, so the program is traced on copies.
        sample = (parameters, images, labels, *(context[name] for name in names))
        program = trace(function, *(value.clone() for value in sample))
        simplify(program)
        start = stretch(model, update, parameters).start
        stops = [start + width for width in accumulate(widths)]
        spans = map(slice, [start, *stops], stops)
        run = compiled(program.forward, parameters.device) if compile_it else program.forward
        _programs[key] = Program(run, names, tuple(spans))
    return _programs[key]


def _widths(model: Model, update: Update, parameters: Tensor, apart: bool) -> tuple[int, ...]:
    """Choose the widths of a gradient's pieces: one in all, or one per tensor where tensors are large enough."""
    span = stretch(model, update, parameters)
    within = [tensor for tensor in model.tensors if span.start <= tensor.start and tensor.stop <= span.stop]
    if not (apart and within) or len(parameters) * (span.stop - span.start) < PIECE_SIZE * len(within):
        return (span.stop - span.start,)
    beyond = span.stop - within[-1].stop
    return (*(tensor.stop - tensor.start for tensor in within), *((beyond,) if beyond else ()))


def _in_pieces(
    gradient: Gradient, names: tuple[str, ...], widths: tuple[int, ...]
) -> Callable[..., tuple[Sequence[Tensor], Tensor]]:
    """Wrap a gradient to return pieces of these widths and to take the context's entries as arguments."""

    def pieces(parameters: Tensor, images: Tensor, labels: Tensor, *values: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        whole, losses = gradient(parameters, images, labels, dict(zip(names, values, strict=True)))
        return (whole.split(widths, dim=1) if len(widths) > 1 else (whole,)), losses

    return pieces


def _split(model: Model, update: Update, parameters: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Make the trained stretch a leaf of autograd; return it with the function that joins it to the frozen rest."""
    span = stretch(model, update, parameters)
    before, after = parameters[..., : span.start].detach(), parameters[..., span.stop :].detach()
    leaf = parameters[..., span].detach().requires_grad_()

    def join(trained: Tensor) -> Tensor:
        pieces = [piece for piece in (before, trained, after) if piece.shape[-1]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)

    return leaf, join


def _loss(model: Model, view: Parameterization | None, update: Update, forward: Forward) -> Callable[..., Tensor]:
    """Build the loss of one client's minibatch, a function of its vector `[size]`, images, labels and context."""

    def loss(vector: Tensor, images: Tensor, labels: Tensor, context: Context) -> Tensor:
        parameters, support = (vector, None) if view is None else view(model, vector, context)
        logits = forward(parameters, images, context.get("dropped"))
        return update.loss(Batch(labels, logits, vector, support, context, tuple(one.slice for one in model.tensors)))

    return loss


def _ascended(update: Update, leaf: Tensor, gradient: Tensor) -> Tensor:
    """Move ρ up the gradient, relative to the coordinates' sizes if adaptive: the point SAM differentiates at."""
    scale = leaf.detach().abs() if update.adaptive_sharpness else torch.ones_like(leaf)
    scaled = scale * gradient
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    moved: Tensor = leaf.detach() + update.sharpness * scale * scaled / norm.clamp_min(1e-12)
    return moved.requires_grad_()


def _differentiate(update: Update, leaf: Tensor, losses_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Differentiate the summed losses by the leaf (under SAM at the ascended point); return gradient and losses."""
    losses = losses_of(leaf)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    if update.sharpness:
        leaf = _ascended(update, leaf, gradient)
        (gradient,) = torch.autograd.grad(losses_of(leaf).sum(), leaf)
    return gradient, losses.detach()


def _single_gradient(model: Model, view: Parameterization | None, update: Update) -> Gradient:
    """Build the gradient for one client: leading dimensions of 1 are dropped."""
    loss = _loss(model, view, update, model.logits_alone)

    def gradient(parameters: Tensor, images: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        leaf, join = _split(model, update, parameters[0])
        own = {name: value[0] for name, value in context.items()}
        with torch.enable_grad():
            result, losses = _differentiate(update, leaf, lambda at: loss(join(at), images[0], labels[0], own))
        return result.unsqueeze(0), losses.unsqueeze(0)

    return gradient


def _stacked_gradient(model: Model, view: Parameterization | None, update: Update) -> Gradient:
    """Build the gradient for all clients at once.

    Only the loss is mapped over clients: autograd outside the map is cheaper than mapping a gradient.
    """
    loss = vmap(_loss(model, view, update, model.logits))

    def gradient(parameters: Tensor, images: Tensor, labels: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        leaf, join = _split(model, update, parameters)
        with torch.enable_grad():
            return _differentiate(update, leaf, lambda at: loss(join(at), images, labels, context))

    return gradient
