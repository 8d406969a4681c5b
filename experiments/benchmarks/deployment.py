"""`python -m experiments.benchmarks.deployment`: what controller and ledger cost in a round of a Flower federation.

A whole run under Flower's simulation runtime, whose nodes are processes of Ray, as `flwr run` starts it. Of each round
the time in plan, charge, observation and saved control loop is taken, by the clock of the wall and by that of the
server's thread, in which nothing else of a busy machine counts, and beside it the whole round: messages, training of
the clients that were drawn, release, saved model. What waits for the disk (fsync) is in the wall time and told apart.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from rich.console import Console
from typing_extensions import override

from envs import Setting
from experiments.benchmarks.isolation import alone
from experiments.flower.client import make_client_app
from experiments.flower.strategy import DPilotStrategy, model_of
from experiments.reports.tables import Table

SETTING = Setting.of(clients=10, rounds=20, sampling_rate=0.8, epsilon=8.0, delta=1e-3, executor="sequential")
CONTROLLERS = ("fixed", "aqc", "probe")
SKIPPED = 2
"""First rounds, in which caches are filled and Ray's processes start."""
STEPS = {"next_round": "plan, charge", "observe": "observe, save"}
"""Method of a deployed run -> what it is called in the table."""
SECONDS = 900.0
"""How long Ray's processes and the nodes may take to start on a busy machine."""
PATIENCE = {"RAY_agent_register_timeout_ms": f"{1000 * SECONDS:.0f}", "RAY_raylet_start_wait_time_s": f"{SECONDS:.0f}"}
BACKEND = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}

Times = dict[str, list[float]]
"""Milliseconds by round: `round` of all of it, `fsync`, and of each of `STEPS` those of the wall and `cpu`."""


def main() -> None:
    """Print the table."""
    rows = []
    for name in CONTROLLERS:
        times = {column: float(np.median(values[SKIPPED:])) for column, values in alone(round_times, name).items()}
        cpu, wall = (sum(times[f"{step} {clock}"] for step in STEPS) for clock in ("cpu", "wall"))
        shown = [f"{value:.2f}" for value in (*(times[f"{step} cpu"] for step in STEPS), cpu, wall, times["fsync"])]
        rows.append((name, *shown, f"{times['round']:.0f}", f"{wall / times['round']:.2%}"))
    headers = ("controller", *STEPS.values(), "both", "both, wall", "of it fsync", "Flower round, wall", "share")
    title = f"A round of {SETTING.federation.clients} nodes, medians in milliseconds (of CPU, if not of the wall)"
    Console(width=110).print(Table(headers, tuple(rows), title=title).terminal())


def round_times(controller: str, rounds: int = SETTING.federation.rounds) -> Times:
    """Measure the rounds of a federation under a controller, which is named."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ |= PATIENCE
    setting, times = SETTING.replace(rounds=rounds), defaultdict[str, list[float]](list)
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Any, context: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            strategy = TimedStrategy(folder, setting, controller, model_of(setting), connect_seconds=SECONDS)
            with strategy.timed(times):
                strategy.start(grid, timeout=SECONDS)

    client = make_client_app(lambda context: setting.federation)
    run_simulation(app, client, num_supernodes=setting.federation.clients, backend_config=BACKEND)
    return dict(times)


class TimedStrategy(DPilotStrategy):
    """The strategy, noting how long its rounds and the steps of their control take."""

    @contextmanager
    def timed(self, times: Times) -> Iterator[None]:
        """Note the times of all that is done within."""
        self._times, self._waited, self._control, real = times, 0.0, False, os.fsync
        for step in STEPS:
            setattr(self.run, step, self._noting(step, getattr(self.run, step)))

        def fsync(fd: Any) -> None:
            start = time.perf_counter()
            real(fd)
            self._waited += _since(start) if self._control else 0.0

        os.fsync = fsync
        try:
            yield
        finally:
            os.fsync = real

    @override
    def configure_train(self, *arguments: Any) -> Any:
        self._start, self._waited = time.perf_counter(), 0.0
        return super().configure_train(*arguments)

    @override
    def aggregate_train(self, *arguments: Any) -> Any:
        result = super().aggregate_train(*arguments)
        self._times["round"].append(_since(self._start))
        self._times["fsync"].append(self._waited)
        return result

    def _noting(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            wall, cpu, self._control = time.perf_counter(), time.thread_time(), True
            result = call(*arguments)
            self._control = False
            self._times[f"{step} wall"].append(_since(wall))
            self._times[f"{step} cpu"].append(1000 * (time.thread_time() - cpu))
            return result

        return noted


def _since(start: float) -> float:
    """Milliseconds of the wall clock since a moment."""
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
