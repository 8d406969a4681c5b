"""Whole rounds with evaluation: rounds per second, of one run and of several batched in one process."""

from __future__ import annotations

import time

from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

SECONDS = 3.0


def rounds_per_second(config: FederationConfig, runs: int = 1, evaluate: bool = True) -> float:
    """Measure the rounds of single runs per second, over a few seconds after a first round."""
    federation = Federation(config, runs)
    plan = RoundPlan.constant(runs)
    federation.run_round(plan, evaluate=evaluate)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS and not federation.done.any():
        federation.run_round(plan, evaluate=evaluate)
        done += runs
    return done / (time.perf_counter() - began)
