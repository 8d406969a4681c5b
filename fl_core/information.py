"""What clients measure about their models: Fisher information, and the risk that an update gives samples away."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fl_core.executors import Images
from fl_core.models import Model
from fl_core.recipes.objective import cross_entropy

FISHER_BATCH = 64
"""Most samples whose gradients are taken at a time."""

_programs: dict[tuple[object, ...], Callable[..., Tensor]] = {}


@torch.no_grad()
def fisher_information(
    model: Model, parameters: Tensor, index: Tensor, counts: Tensor, images: Images, memory_limit: int
) -> Tensor:
    """Diagonal of the empirical Fisher information: the mean over samples of the squared gradient of log p(y|x).

    Per sample, not of a batch's mean gradient (FedDPA eq. 4, ADP-PFL eq. 13).

    Args:
        model: the network.
        parameters: models `[rows, size]`.
        index: positions of each client's samples `[rows, longest]`.
        counts: how many of them count `[rows]`.
        images: where the positions point.
        memory_limit: bytes that the gradients of a stack may take, about.

    Returns:
        `[rows, size]`.
    """
    rows, longest = index.shape
    batch = min(FISHER_BATCH, longest)
    per_row = 8 * batch * (model.size + 2 * model.activations)
    stack = max(1, min(rows, memory_limit // per_row))
    results = []
    for first in range(0, rows, stack):
        # The last stack is padded by repeating its last row, so that all of them run the same program.
        chosen = torch.arange(first, first + stack, device=index.device).clamp_max(rows - 1)
        longest_here = int(counts[chosen].max())
        total = torch.zeros_like(parameters[chosen])
        for start in range(0, longest_here, batch):
            columns = torch.arange(start, start + batch, device=index.device).clamp_max(longest - 1)
            inputs, labels = images.read(index[chosen][:, columns])
            counted = torch.arange(start, start + batch, device=index.device) < counts[chosen].unsqueeze(-1)
            total += _summed_squares(model, parameters[chosen], inputs, labels, counted.to(total.dtype))
        results.append(total / counts[chosen].unsqueeze(-1))
    return torch.cat(results)[:rows]


def _summed_squares(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Σ_s counted_s·(∂ log p(y_s|x_s)/∂θ)² of each client `[rows, size]`, by a traced program."""
    network = (model.name, model.shape, model.classes)
    key = (network, images.shape, parameters.device, torch.get_num_threads())
    if key not in _programs:

        def of_sample(vector: Tensor, image: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(model.logits(vector, image.unsqueeze(0)), label.unsqueeze(0))

        def of_client(vector: Tensor, own: Tensor, truth: Tensor, weights: Tensor) -> Tensor:
            gradients = vmap(grad(of_sample), (None, 0, 0))(vector, own, truth)
            summed: Tensor = weights @ gradients.square()
            return summed

        arguments = (parameters.clone(), images.clone(), labels.clone(), counted.clone())
        _programs[key] = make_fx(vmap(of_client))(*arguments)
    squares: Tensor = _programs[key](parameters, images, labels, counted)
    return squares


def jacobian_risk(model: Model, parameters: Tensor, images: Tensor, labels: Tensor, probes: Tensor) -> Tensor:
    """Frobenius norm of ∂/∂x[∂ℓ/∂θ] on a minibatch, each client's privacy risk (ADP-PFL eq. 7 and 8).

    Estimated with random signs v: for g = ∇_x⟨∇_θ ℓ, v⟩ the mean of ‖g‖² is the squared norm.

    Args:
        model: the network.
        parameters: models `[rows, size]`.
        images, labels: a minibatch of each client `[rows, batch, ...]`.
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
