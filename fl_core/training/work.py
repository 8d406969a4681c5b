"""The local training that executors are asked for: start, minibatches, context and settings of stacked clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fl_core.base.transfers import to_device
from fl_core.data.augmentation import Transform, augment
from fl_core.recipes.objective import Phase
from fl_core.recipes.parameterization import Parameterization
from fl_core.training.images import Images
from fl_core.training.optimizers import Optimizer


@dataclass(frozen=True)
class LocalWork:
    """Local training of n clients, each row one client of one run.

    Attributes:
        parameters: vectors that training starts from `[n, size]`, longer than the model where the method adds
            coordinates.
        phases: phases of local training, in order.
        batches: per phase, indices into the training images `[n, steps, batch]`, on the host if those are.
        active: per phase, True while a client still works at a step `[n, steps]`; None where all do.
        context: tensors of each client `[n, ...]` for its loss.
        learning_rate: `[n]`.
        optimizer: settings of the local optimizer.
        rows_vary: True where n changes from round to round, so that programs are shared between near sizes.
        view: maps a vector to the model's parameters; None where the vector is them.
        keys: per phase, the random word of each sample of each minibatch `[n, steps, batch]`, which its augmentation
            and its dropped units follow from; () where nothing is random.
        augmentation: changes of the images, in order.
        drops: True to drop units where the model has dropout.
        compiled: True to run gradients as `torch.compile` makes them.
    """

    parameters: Tensor
    phases: tuple[Phase, ...]
    batches: tuple[Tensor, ...]
    active: tuple[Tensor | None, ...]
    context: dict[str, Tensor]
    learning_rate: Tensor
    optimizer: Optimizer
    rows_vary: bool = False
    view: Parameterization | None = None
    keys: tuple[Tensor, ...] = ()
    augmentation: tuple[Transform, ...] = ()
    drops: bool = False
    compiled: bool = False


def take(work: LocalWork, rows: range) -> LocalWork:
    """Select the work of some rows; beyond the last one, that one is repeated."""
    count = len(work.parameters)
    if rows.stop <= count:
        return _indexed(work, slice(rows.start, rows.stop), slice(rows.start, rows.stop))
    chosen = torch.arange(rows.start, rows.stop).clamp_max(count - 1)
    return _indexed(work, to_device(chosen, work.parameters.device), to_device(chosen, work.batches[0].device))


def _indexed(work: LocalWork, rows: Tensor | slice, places: Tensor | slice) -> LocalWork:
    """Select the work of some rows, and their minibatches, which are on the host where the images are."""
    return replace(
        work,
        parameters=work.parameters[rows],
        batches=tuple(batches[places] for batches in work.batches),
        active=tuple(None if active is None else active[rows] for active in work.active),
        context={name: value[rows] for name, value in work.context.items()},
        learning_rate=work.learning_rate[rows],
        keys=tuple(keys[rows] for keys in work.keys),
    )


def read(work: LocalWork, images: Images, index: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gather minibatches `[..., batch]` and change their images as their random words say."""
    inputs, labels = images.read(index)
    if keys is not None:
        inputs = augment(inputs, keys, work.augmentation, images.black)
    return inputs, labels
