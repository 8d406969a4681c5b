"""Memory of a batch of runs, estimated from its settings before any work, to refuse what cannot fit."""

from __future__ import annotations

import math

import torch

from fl_core.base.errors import InputError
from fl_core.base.memory import free_bytes
from fl_core.models.model import Model
from fl_core.recipes.recipe import Recipe
from fl_core.run.config import FederationConfig

_INDEX_BYTES = 24
"""Bytes per drawn position of a minibatch: its key, the key within its pass, and its place in their order."""
_USUAL = {"batch_size": 16, "local_steps": 4, "local_epochs": 1, "clients": 50}
"""Settings that the minibatches of a round grow with, and their usual values."""


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
