"""What bounds the rounds that no peer runs: several rows of one batch, and a method of two gradients per minibatch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from experiments.benchmarks.peers import RoundCost, bounds, seconds_of, step_operations
from fl_core.recipes.catalog import find_method
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

WARM_UP = 2


@dataclass(frozen=True)
class Bounded:
    """Rounds of some rows of one batch, of the task digits but for the method and the model."""

    title: str
    rows: int = 1
    method: str = "dp-fedavg"
    model: str = "mlp"

    @property
    def config(self) -> FederationConfig:
        """Settings of the federation: every client takes part, and `vectorized` trains them."""
        return FederationConfig(method=self.method, model=self.model, rounds=100_000, executor="vectorized")


BOUNDED = (
    Bounded("MLP, one row"),
    Bounded("MLP, 8 rows", rows=8),
    Bounded("small CNN, dp-fedavg", model="cnn2"),
    Bounded("small CNN, fedaddp", method="fedaddp", model="cnn2"),
)


def operations(case: Bounded) -> float:
    """Count the operations of the gradients of a round's minibatches; those of the Fisher information are left out."""
    config, phases = case.config, find_method(case.method).objective.phases
    passes = sum(phase.work * update.gradient_passes for phase in phases for update in phase.updates)
    steps = case.rows * config.clients * config.local_steps
    return steps * passes * step_operations(case.model, (1, 8, 8), config.batch_size)


def bounded_cost(case: Bounded, rounds: int = 15) -> RoundCost:
    """Measure rounds without evaluation."""
    federation = Federation(case.config, case.rows)
    once = partial(federation.run_round, RoundPlan.constant(case.rows), evaluate=False)
    for _ in range(WARM_UP):
        once()
    return bounds(once, [seconds_of(once) for _ in range(rounds)], operations(case))
