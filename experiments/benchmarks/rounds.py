"""Whole rounds with evaluation: rounds per second, and what batching several runs in one process gains."""

from __future__ import annotations

import time

from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

SECONDS = 3.0


def rounds_per_second(config: FederationConfig, runs: int = 1, evaluate: bool = True) -> float:
    """Rounds of single runs per second, timed over a few seconds after a first round."""
    federation = Federation(config, runs)
    plan = RoundPlan.constant(runs)
    federation.run_round(plan, evaluate=evaluate)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS and not federation.done.any():
        federation.run_round(plan, evaluate=evaluate)
        done += runs
    return done / (time.perf_counter() - began)
