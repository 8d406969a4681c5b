"""Releases of the rounds that trained or tuned a controller."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from envs import EnvCore
from experiments.records.costs import PriorRounds
from fl_core.run.config import RunSettings


def prior_rounds(core: EnvCore, rounds: Mapping[int, int]) -> tuple[PriorRounds, ...]:
    """Group the rounds of runs by their noise, each run taken to spend its ε evenly.

    Args:
        core: an environment of the runs' setting; its generator may give every instance an ε of its own.
        rounds: instance -> federated rounds that were run on it.
    """
    config, recipe = core.federation.config, core.federation.recipe
    by_epsilon: dict[float, int] = {}
    for seed, count in rounds.items():
        own = core.generator.fill(RunSettings(seed=seed)).epsilon
        epsilon = config.epsilon if own is None else own
        by_epsilon[epsilon] = by_epsilon.get(epsilon, 0) + count
    noise = core.noise_at
    return tuple(
        PriorRounds(
            count, config.rounds, epsilon, noise(epsilon) if recipe.exchanges else math.inf, config.accounting_rate
        )
        for epsilon, count in sorted(by_epsilon.items())
        if count
    )


def spread_evenly(rounds: int, seeds: Sequence[int]) -> dict[int, int]:
    """Divide rounds evenly over the instances of these seeds: seed -> rounds."""
    share, rest = divmod(rounds, len(seeds))
    return {seed: share + (place < rest) for place, seed in enumerate(seeds)}
