"""Time of a round of each method, in rounds of `dp-fedavg` by the same executor in the same process."""

from __future__ import annotations

import math
import time
import warnings

from fl_core.recipes.catalog import METHODS
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

REPEATS = 5
BASE = "dp-fedavg"
LIMITS = {"fedglp-adp": 2.3, "feddpa": 3.2, "fedaddp": 2.7, "blur-lus": 1.3, "dp-fedsam": 2.2, "acdp-pfsd": 1.7}
"""Ratios to stay under; everything else under `OTHERS`, plus its longer local work.

FedDPA and FedADDP take two gradients of every minibatch, the second where the first has moved the client, and one of
every sample for the Fisher information; FedDPA's losses have two norms beside.
"""
OTHERS = 1.5


def longest_ratio(method: str) -> float:
    """Return the ratio that a method should stay under."""
    phases = METHODS[method].objective.phases
    extra = sum(phase.work for phase in phases) - 1
    return LIMITS.get(method, OTHERS) + extra


def method_costs(
    executor: str, model: str, dataset: str, clients: int, sampling_rate: float, local_epochs: float = 3.0
) -> dict[str, float]:
    """Time a round of every method, in processor seconds: the least of interleaved repeats, after a first one."""
    warnings.simplefilter("ignore")
    federations = {}
    for name, recipe in METHODS.items():
        config = FederationConfig(
            dataset=dataset,
            model=model,
            method=name,
            clients=clients,
            sampling="fixed",
            sampling_rate=sampling_rate,
            partition="iid",
            local_epochs=local_epochs,
            learning_rate=0.05,
            rounds=100,
            epsilon=8.0 if recipe.private or not recipe.exchanges else math.inf,
            executor=executor,
        )
        federations[name] = Federation(config)
        for _ in range(2):  # the second one has teachers and risks to work with
            federations[name].run_round(RoundPlan.constant(1))
    best = dict.fromkeys(federations, float("inf"))
    for _ in range(REPEATS):
        for name, federation in federations.items():
            began = time.process_time()
            federation.run_round(RoundPlan.constant(1))
            best[name] = min(best[name], time.process_time() - began)
    return best
