"""Measures that clients take of their models: Fisher information, and the risk that an update reveals samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from fl_core.base.transfers import largest_count, to_device
from fl_core.models.layers import Dense
from fl_core.models.model import Model
from fl_core.models.tracing import trace
from fl_core.recipes.objective import cross_entropy
from fl_core.training.images import Images
from fl_core.training.passes import simplify

FISHER_BATCH = 64
"""Most samples of a client whose gradients are taken at a time."""

_programs: dict[tuple[object, ...], Callable[..., Tensor]] = {}


@torch.no_grad()
def fisher_information(
    model: Model, parameters: Tensor, index: Tensor, counts: Tensor, images: Images, memory_limit: int
) -> Tensor:
    """Estimate the diagonal of the empirical Fisher information: mean over samples of (∂ log p(y|x)/∂θ)².

    Per sample, not of a batch's mean gradient (FedDPA eq. 4, ADP-PFL eq. 13).

    Args:
        model: the network.
        parameters: models `[rows, size]`.
        index: positions of each client's samples `[rows, longest]`, on the host if the images are.
        counts: number of valid entries in each row of `index` `[rows]`.
        images: image set that the positions index.
        memory_limit: bytes that the gradients of a stack may take, about.

    Returns:
        `[rows, size]`.
    """
    (rows, longest), models_on = index.shape, parameters.device
    batch = min(FISHER_BATCH, longest)
    gradients = model.largest_layer if model.by_layer else 3 * model.size
    per_row = 8 * (2 * model.size + batch * (12 * model.activations + gradients))
    stack = max(1, min(rows, memory_limit // per_row))
    results = []
    for first in range(0, rows, stack):
        # The last stack is padded by repeating its last row, so that all of them run the same program.
        chosen, picked = (
            torch.arange(first, first + stack, device=one).clamp_max(rows - 1) for one in (models_on, index.device)
        )
        longest_here = largest_count(counts[chosen], longest)
        total = torch.zeros_like(parameters[chosen])
        for start in range(0, longest_here, batch):
            columns = torch.arange(start, start + batch, device=index.device).clamp_max(longest - 1)
            inputs, labels = images.read(index[picked][:, columns])
            counted = torch.arange(start, start + batch, device=models_on) < counts[chosen].unsqueeze(-1)
            total += _summed_squares(model, parameters[chosen], inputs, labels, counted.to(total.dtype))
        results.append(total / counts[chosen].unsqueeze(-1))
    return torch.cat(results)[:rows]


def _summed_squares(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Compute Σ_s counted_s·(∂ log p(y_s|x_s)/∂θ)² of each client `[rows, size]` by a traced program."""
    key = (model.key, images.shape, parameters.device, torch.get_num_threads())
    if key not in _programs:
        arguments = (parameters.clone(), images.clone(), labels.clone(), counted.clone())
        squares_of = _squares_by_layer if model.by_layer else _squares_by_sample
        program = trace(partial(squares_of, model), *arguments)
        simplify(program)
        _programs[key] = program.forward
    squares: Tensor = _programs[key](parameters, images, labels, counted)
    return squares


def _squares_by_sample(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Compute the sums of squared per-sample gradients `[rows, size]` of any network, one gradient for each sample."""

    def loss(vector: Tensor, image: Tensor, truth: Tensor) -> Tensor:
        return cross_entropy(model.logits(vector, image.unsqueeze(0)), truth.unsqueeze(0))

    gradients = vmap(vmap(grad(loss), (None, 0, 0)))(parameters.detach(), images, labels)
    summed: Tensor = (counted.unsqueeze(1) @ gradients.square()).squeeze(1)
    return summed


def _squares_by_layer(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Compute the sums of squared per-sample gradients `[rows, size]`, layer by layer.

    One pass forward and back gives every layer's inputs and output gradients for all samples; a sample's gradient by a
    layer's parameters follows from these two alone, so no gradient by a parameter is taken.
    """
    shapes = model.output_shapes(images.shape[1])
    nudges = [torch.zeros(len(parameters), *shape, device=images.device) for shape in shapes]

    def loss(vector: Tensor, own: Tensor, truth: Tensor, added: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        logits, inputs = model.tapped_logits(vector, own, added)
        # The mean times the count: a sample's own gradient must not depend on how many others share the batch.
        return cross_entropy(logits, truth) * len(truth), inputs

    with torch.enable_grad():
        leaves = [nudge.requires_grad_() for nudge in nudges]
        # Samples of a batch do not mix in the network, so the gradient of the sum keeps theirs apart by position.
        losses, inputs = vmap(loss)(parameters.detach(), images, labels, leaves)
        gradients = torch.autograd.grad(losses.sum(), leaves)
    pieces = []
    for layer, entering, leaving in zip(model.parametric_layers, inputs, gradients, strict=True):
        pieces += _layer_squares(layer, entering.detach(), leaving, counted)
    return torch.cat(pieces, dim=-1)


def _layer_squares(layer: nn.Module, entering: Tensor, leaving: Tensor, counted: Tensor) -> list[Tensor]:
    """Sum the squared gradients by weight and bias over the samples `[rows, size of each]`.

    Args:
        layer: a `Dense`, a convolution or a GroupNorm.
        entering: its inputs `[rows, samples, ...]`.
        leaving: gradients by its outputs `[rows, samples, ...]`.
        counted: weight of each sample `[rows, samples]`.
    """
    if isinstance(layer, Dense):
        squares = leaving.square() * counted.unsqueeze(-1)
        weight = entering.square().transpose(1, 2) @ squares  # (a·g)² = a²·g², one product for all samples
        return [weight.flatten(1), squares.sum(1)]
    if isinstance(layer, nn.Conv2d):
        rows, samples = leaving.shape[:2]
        assert not isinstance(layer.padding, str)
        geometry = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
        windows = functional.unfold(entering.flatten(0, 1), *geometry)
        spread = leaving.flatten(0, 1).flatten(2)
        # A kernel meets many windows of one sample: their products are summed before they are squared.
        by_sample = (spread @ windows.transpose(1, 2)).view(rows, samples, -1)
        found = [(counted.unsqueeze(1) @ by_sample.square()).squeeze(1)]
        if layer.bias is not None:
            found.append((counted.unsqueeze(1) @ spread.sum(-1).view(rows, samples, -1).square()).squeeze(1))
        return found
    assert isinstance(layer, nn.GroupNorm)
    grouped = entering.reshape(*entering.shape[:2], layer.num_groups, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    normal = (centred / (grouped.var(-1, keepdim=True, correction=0) + layer.eps).sqrt()).view_as(entering)
    gradients = [(leaving * normal).flatten(3).sum(-1), leaving.flatten(3).sum(-1)]
    return [(counted.unsqueeze(1) @ gradient.square()).squeeze(1) for gradient in gradients]


RISK_PROBES = 4
"""Random signs by which a client's Jacobian risk is estimated."""


def client_risk(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, order: int) -> Tensor:
    """Measure the privacy risk of each client `[rows]`, by `jacobian_risk` (order 2) or `first_order_risk` (1)."""
    if order == 1:
        return first_order_risk(model, parameters, images)
    generator = torch.Generator().manual_seed(0)  # any signs will do, the same for all
    signs = torch.randint(0, 2, (RISK_PROBES, model.size), generator=generator) * 2.0 - 1.0
    return jacobian_risk(model, parameters, images, labels, to_device(signs, parameters.device))


def jacobian_risk(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, probes: Tensor) -> Tensor:
    """Estimate the privacy risk of each client: the Frobenius norm of ∂/∂x[∂ℓ/∂θ] on a minibatch.

    ADP-PFL eq. 7 and 8, by random signs v: for g = ∇_x⟨∇_θ ℓ, v⟩ the mean of ‖g‖² is the squared norm (Hutchinson).

    Args:
        model: the network.
        parameters: models `[rows, size]`.
        images: a minibatch of each client `[rows, batch, ...]`.
        labels: its classes `[rows, batch]`.
        probes: random signs `[probes, size]`, the same for all clients.

    Returns:
        `[rows]`.
    """

    def loss(vector: Tensor, inputs: Tensor, truth: Tensor) -> Tensor:
        return cross_entropy(model.logits(vector, inputs), truth)

    squares = torch.zeros(len(parameters), device=parameters.device)
    with torch.enable_grad():
        leaf, inputs = parameters.detach().requires_grad_(), images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(vmap(loss)(leaf, inputs, labels).sum(), leaf, create_graph=True)
        for probe in probes:
            (by_input,) = torch.autograd.grad((gradient * probe).sum(), inputs, retain_graph=True)
            squares += by_input.flatten(1).square().sum(-1)
    return (squares / len(probes)).sqrt()


def first_order_risk(model: Model, parameters: Tensor, images: Tensor) -> Tensor:
    """Compute the first-order privacy risk of each client: ‖∂f_k/∂x‖ of the logits f_k, mean over classes and samples.

    Args:
        model: the network.
        parameters: models `[rows, size]`.
        images: a minibatch of each client `[rows, batch, ...]`.

    Returns:
        `[rows]`.
    """
    norms = torch.zeros(len(parameters), device=parameters.device)
    with torch.enable_grad():
        inputs = images.detach().requires_grad_()
        logits = vmap(model.logits)(parameters.detach(), inputs)
        for one in range(model.classes):  # samples do not mix, so the gradient of the sum keeps theirs apart
            (by_input,) = torch.autograd.grad(logits[..., one].sum(), inputs, retain_graph=True)
            norms += by_input.flatten(2).norm(dim=-1).mean(-1)
    return norms / model.classes
