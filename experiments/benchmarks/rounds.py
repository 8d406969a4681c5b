"""Whole rounds with evaluation: rounds per processor second, of one run and of several batched in one process."""

from __future__ import annotations

import time

from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan

SECONDS = 3.0


def rounds_per_second(config: FederationConfig, runs: int = 1, evaluate: bool = True) -> float:
    """Measure the rounds of single runs per processor second, over a few of these after a first round."""
    federation = Federation(config, runs)
    plan = RoundPlan.constant(runs)
    federation.run_round(plan, evaluate=evaluate)
    done, began = 0, time.process_time()
    while time.process_time() - began < SECONDS and not federation.done.any():
        federation.run_round(plan, evaluate=evaluate)
        done += runs
    return done / (time.process_time() - began)
