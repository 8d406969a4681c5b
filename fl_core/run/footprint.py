"""Memory of a batch of runs, estimated from its settings before any work, to refuse what cannot fit."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from fl_core.base.errors import InputError
from fl_core.base.memory import free_bytes
from fl_core.data.datasets import Dataset, placed
from fl_core.models.model import Model
from fl_core.recipes.recipe import Recipe
from fl_core.run.config import FederationConfig

_INDEX_BYTES = 24
"""Bytes per drawn position of a minibatch: its key, the key within its pass, and its place in their order."""
_USUAL = {"batch_size": 16, "local_steps": 4, "local_epochs": 1, "clients": 50}
"""Settings that the minibatches of a round grow with, and their usual values."""


def place_images(dataset: Dataset, device: torch.device, limit_mib: int) -> tuple[Dataset, bool]:
    """Copy a dataset to a device, but for images that do not fit there.

    Args:
        dataset: on the host, or on the device already.
        device: where it is to be used.
        limit_mib: MiB that images may take; 0 takes half of what is free on a GPU, and sets no limit on a CPU.

    Returns:
        The dataset, its labels on the device, and True if its images are on the host.
    """
    images = (dataset.train_images, dataset.test_images)
    size = sum(one.numel() * one.element_size() for one in images)
    free = math.inf if device.type == "cpu" else free_bytes(device) / 2
    if images[0].device.type != "cpu" or size <= (limit_mib * 2**20 or free):
        return placed(dataset, device), False
    labels = {name: getattr(dataset, name).to(device) for name in ("train_labels", "test_labels")}
    return replace(dataset, **labels), True


def require_memory(config: FederationConfig, recipe: Recipe, model: Model, runs: int, longest: int) -> None:
    """Refuse a batch of runs whose tensors cannot fit into memory; the estimate is from below.

    Args:
        config: settings that the runs share.
        recipe: their method.
        model: their network.
        runs: how many there are.
        longest: training samples of the client with most of them.

    Raises:
        InputError: they take more than is free; the sentence names the setting to lower.
    """
    device = config.resolve_device()
    kept, passing = _state_bytes(config, recipe, model, runs), _round_bytes(config, recipe, model, runs, longest)
    free, total = free_bytes(device), kept + passing
    if total <= free:
        return
    name = "clients" if kept >= passing else _largest(config)
    several = f" for {runs} runs side by side" if runs > 1 else ""
    raise InputError(
        f"{name} is {getattr(config, name)}, with which a round takes some {_gib(total)} GiB of memory{several}, but "
        f"{_gib(free)} GiB are free; lower it."
    )


def _state_bytes(config: FederationConfig, recipe: Recipe, model: Model, runs: int) -> int:
    """Bytes of what the runs and clients keep, and of the updates of a cohort."""
    of_run, of_client = recipe.initial_state(model, torch.zeros(model.size))
    per_run = 3 * model.size + sum(one.numel() for one in of_run.values())
    seen = min(config.clients, math.ceil(config.cohort * config.rounds))  # nobody else keeps anything
    kept = 4 * runs * seen * sum(one.numel() for one in of_client.values())
    if config.client_memory_mib:
        kept = min(kept, config.client_memory_mib * 2**20)
    updates = math.ceil(config.cohort / 2) * model.size  # of a small cohort as well
    return 4 * runs * (per_run + updates) + kept


def _round_bytes(config: FederationConfig, recipe: Recipe, model: Model, runs: int, longest: int) -> int:
    """Bytes of the minibatches of a round's cohort, and of the activations of one client."""
    work = sum(phase.work for phase in recipe.objective.phases)
    if config.local_epochs:
        steps = math.ceil(config.local_epochs * work * longest / config.batch_size)
    else:
        steps = math.ceil(config.local_steps * work)
    width = longest + steps * config.batch_size
    pixels = math.prod(model.shape)
    return math.ceil(_INDEX_BYTES * runs * config.cohort * width) + 4 * config.batch_size * (pixels + model.activations)


def _largest(config: FederationConfig) -> str:
    """Name the setting of the minibatches that is farthest above its usual value."""
    names = [name for name in _USUAL if name != ("local_steps" if config.local_epochs else "local_epochs")]
    return max(names, key=lambda name: float(getattr(config, name)) / _USUAL[name])


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f}"
