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
    by_budget: dict[tuple[float, int], int] = {}
    members = {member.config.rounds: member for member in reversed(core.fleet.members)}
    for seed, count in rounds.items():
        own = core.generator.fill(RunSettings(seed=seed)).epsilon
        length = core.fleet.members[core.generator.shape_of(seed)].config.rounds
        budget = config.epsilon if own is None else own, length
        by_budget[budget] = by_budget.get(budget, 0) + count

    def noise(epsilon: float, length: int) -> float:
        return members[length].charging.noise_at(0)(epsilon) if recipe.exchanges else math.inf

    return tuple(
        PriorRounds(count, length, epsilon, noise(epsilon, length), config.accounting_rate)
        for (epsilon, length), count in sorted(by_budget.items())
        if count
    )


def spread_evenly(rounds: int, seeds: Sequence[int]) -> dict[int, int]:
    """Divide rounds evenly over the instances of these seeds: seed -> rounds."""
    share, rest = divmod(rounds, len(seeds))
    return {seed: share + (place < rest) for place, seed in enumerate(seeds)}
