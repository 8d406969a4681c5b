"""What a client minimises: losses as pure functions of one client's tensors, and the phases of local training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

Context = Mapping[str, Tensor]
"""One client's tensors of this round: `start` `[size]` (the model training starts from), `clip_norm` `[]` and what the
personalization part adds. Executors may map a leading client dimension over every entry."""

Forward = Callable[[Tensor, Tensor], Tensor]
"""Logits `[batch, classes]` from parameters `[size]` and images `[batch, channels, height, width]`."""

Loss = Callable[[Forward, Tensor, Tensor, Tensor, Context], Tensor]
"""Scalar loss of (forward, parameters `[size]`, images, labels `[batch]`, context)."""


def cross_entropy(forward: Forward, parameters: Tensor, images: Tensor, labels: Tensor, context: Context) -> Tensor:
    """Mean cross-entropy of the minibatch, in fewer operations than PyTorch's under a map (it has no ignored label)."""
    log_probabilities = functional.log_softmax(forward(parameters, images), dim=-1)
    return -log_probabilities.gather(-1, labels.unsqueeze(-1)).mean()


@dataclass(frozen=True)
class Update:
    """One optimizer step per minibatch, on one part of the model.

    Attributes:
        loss: what it descends.
        trains: `all`, `head` or `body`; the rest of the model stays as it is.
    """

    loss: Loss = cross_entropy
    trains: str = "all"


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: every minibatch goes through `updates` in order, each with its own optimizer state.

    Attributes:
        updates: the steps taken on each minibatch.
        work: length of the phase as a multiple of the configured local work, above 0.
    """

    updates: tuple[Update, ...] = (Update(),)
    work: float = 1.0


@dataclass(frozen=True)
class Objective:
    """The local training of a method: phases one after the other."""

    phases: tuple[Phase, ...] = (Phase(),)
