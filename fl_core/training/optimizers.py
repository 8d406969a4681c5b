"""Local optimizers over stacked flat parameters, with PyTorch's update rules.

`torch.optim` cannot run one optimizer state per stacked client; these are its SGD and Adam (same order of operations,
same defaults) on tensors `[clients, size]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fl_core.base.errors import require, require_name, require_positive
from fl_core.base.libraries import Tensor, torch

ADAM_BETAS = (0.9, 0.999)
OPTIMIZERS = {
    "sgd": "stochastic gradient descent, with momentum if it is set",
    "adam": "Adam with betas 0.9 and 0.999",
}


@dataclass(frozen=True)
class Optimizer:
    """Settings of the local optimizer; its state starts afresh in every round.

    Attributes:
        name: `sgd` or `adam`.
        momentum: SGD's momentum, in [0, 1).
        weight_decay: coefficient of the L2 term added to the gradient, at least 0.
        adam_epsilon: Adam's denominator offset, above 0.
    """

    name: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8

    def __post_init__(self) -> None:
        require_name("Optimizer", self.name, OPTIMIZERS)
        require(0 <= self.momentum < 1, f"momentum is {self.momentum}, but it must lie in [0, 1).")
        require(
            self.momentum == 0 or self.name == "sgd",
            f"momentum is {self.momentum}, but optimizer 'adam' has none; set it to 0.",
        )
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}, but it must be at least 0.")
        require_positive("adam_epsilon", self.adam_epsilon)


class OptimizerState:
    """Moving averages of one local phase, for parameters `[clients, size]` (or `[size]`)."""

    def __init__(self, settings: Optimizer):
        self._settings = settings
        self._step = 0
        self._first: Tensor | None = None
        self._second: Tensor | None = None

    def apply_(self, parameters: Tensor, gradient: Tensor, learning_rate: Tensor, mask: Tensor | None = None) -> Tensor:
        """Move the parameters by one step, in place.

        Args:
            parameters: `[clients, size]` or `[size]`.
            gradient: of the same shape.
            learning_rate: broadcastable to them, `[clients, 1]` or a scalar tensor.
            mask: 1 on the coordinates that move, of the same shape; None for all. The others get no decay either.

        Returns:
            The parameters.
        """
        settings = self._settings
        self._step += 1
        if settings.weight_decay:
            gradient = gradient.add(parameters, alpha=settings.weight_decay)
        if mask is not None:
            gradient = gradient * mask
        if settings.name == "adam":
            gradient = self._adam_direction(gradient)
        elif settings.momentum:
            self._first = gradient if self._first is None else self._first * settings.momentum + gradient
            gradient = self._first
        # The rate is a tensor, one per client: `addcmul_` is then the update of `torch.optim` without a temporary.
        return parameters.addcmul_(gradient, learning_rate, value=-1)

    def _adam_direction(self, gradient: Tensor) -> Tensor:
        beta1, beta2 = ADAM_BETAS
        if self._first is None or self._second is None:
            self._first = gradient * (1 - beta1)
            self._second = gradient.square().mul_(1 - beta2)
        else:
            self._first = torch.lerp(self._first, gradient, 1 - beta1)
            self._second = (self._second * beta2).addcmul_(gradient, gradient, value=1 - beta2)
        first = self._first / (1 - beta1**self._step)
        root = (self._second / (1 - beta2**self._step)).sqrt_()
        return first / root.add_(self._settings.adam_epsilon)


class PieceOptimizer:
    """Moves a stretch of stacked vectors by a gradient that comes in pieces, each with its own moving averages.

    SGD and Adam treat every coordinate by itself, so cutting the gradient changes nothing.
    """

    def __init__(self, settings: Optimizer, vectors: Tensor, spans: Sequence[slice], mask: Tensor | None = None):
        """Begin a local phase.

        Args:
            settings: of the optimizer.
            vectors: moved in place `[clients, size]`.
            spans: stretch of the vectors of each piece, adjacent and in order.
            mask: 1 on the coordinates that move `[clients, stretch]`; None for all.
        """
        first = spans[0].start
        self._places = [vectors[:, span] for span in spans]
        self._states = [OptimizerState(settings) for _ in spans]
        self._masks = [None if mask is None else mask[:, span.start - first : span.stop - first] for span in spans]

    def apply_(self, gradient: Sequence[Tensor], learning_rate: Tensor, works: Tensor | None = None) -> None:
        """Move the clients that still work by one step.

        Args:
            gradient: in pieces `[clients, piece]`.
            learning_rate: `[clients, 1]`.
            works: True for clients that move `[clients]`; None for all.
        """
        for place, state, mask, piece in zip(self._places, self._states, self._masks, gradient, strict=True):
            if works is None:
                state.apply_(place, piece, learning_rate, mask)
            else:
                # Momentum of clients that have stopped goes on, unread: they never start again within a phase.
                moved = state.apply_(place.clone(), piece, learning_rate, mask)
                place.copy_(torch.where(works.unsqueeze(-1), moved, place))
