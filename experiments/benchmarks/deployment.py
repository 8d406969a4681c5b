"""`python -m experiments.benchmarks.deployment`: what controller and ledger cost in a round of a deployed run.

CPU time, as other processes of the machine do not count in it; the time that the disk takes to confirm writes (fsync)
is told apart. A round of Flower is at least its clients' training and the server's release, which are done here one
after the other in this process, without messages and processes that Flower starts: the share of it is an upper bound.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console

from envs import Setting
from experiments.benchmarks.isolation import alone
from experiments.contenders.preparing import parse_contender
from experiments.deployment.deployed_run import DeployedRun
from experiments.reports.tables import Table
from fl_core.run.charging import UPDATE
from fl_core.run.client import FederatedClient
from fl_core.run.config import RunSettings
from fl_core.run.knobs import knob_tensors
from fl_core.run.server import FederatedServer

SETTING = Setting.of(clients=10, rounds=20, sampling_rate=1.0, epsilon=8.0, delta=1e-3, executor="sequential")
CONTROLLERS = ("fixed", "aqc", "probe")
SKIPPED = 2
"""First rounds, in which caches are filled."""


@dataclass
class RoundCost:
    """Medians over the rounds of a run, in milliseconds.

    Attributes:
        charge: CPU time of plan and charge.
        observe: CPU time of taking in what was released, and of saving.
        disk: time in fsync.
        training: CPU time of the clients' training and the server's release.
    """

    charge: list[float] = field(default_factory=list)
    observe: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)

    @property
    def control(self) -> float:
        """CPU time of controller and ledger."""
        return self.median("charge") + self.median("observe")

    @property
    def share(self) -> float:
        """Share of controller and ledger in the CPU time of a round."""
        return self.control / (self.control + self.median("training"))

    def median(self, name: str) -> float:
        """Compute the median of a column over the rounds, but for the first ones."""
        return float(np.median(getattr(self, name)[SKIPPED:]))


def main() -> None:
    """Print the table."""
    rows = []
    for name in CONTROLLERS:
        cost = alone(round_cost, name)
        parts = (cost.median("charge"), cost.median("observe"), cost.control, cost.median("disk"))
        rows.append((name, *(f"{value:.2f}" for value in parts), f"{cost.median('training'):.0f}", f"{cost.share:.1%}"))
    headers = ("controller", "plan, charge", "observe, save", "both", "fsync", "training, release", "share")
    title = f"A round of {SETTING.federation.clients} clients, milliseconds of CPU (fsync: of waiting)"
    Console(width=100).print(Table(headers, tuple(rows), title=title).terminal())


def round_cost(controller: str, rounds: int = SETTING.federation.rounds) -> RoundCost:
    """Measure the rounds of a run under a controller, which is named."""
    setting = parse_contender(controller).needs("sound").met_by(SETTING.replace(rounds=rounds))
    config, cost = setting.federation, RoundCost()
    clients = [FederatedClient(config, 0, number) for number in range(config.clients)]
    server = FederatedServer(config, clients[0].model, 0, b"")
    with tempfile.TemporaryDirectory() as folder, _synced(cost.disk) as rest:
        run = DeployedRun(folder, setting, controller, server.model, RunSettings(seed=0))
        while (now := _timed(cost.charge, run.next_round)) is not None:
            figures = _timed(cost.training, _round, clients, server, now)
            _timed(cost.observe, run.observe, figures)
            rest()
        run.close()
    return cost


def _round(clients: list[FederatedClient], server: FederatedServer, now: Any) -> dict[str, float]:
    """Train all clients, and release the sum of their updates."""
    knobs, paid = knob_tensors(now.knobs), [name for name in now.noise if name != UPDATE]
    uploads = [one.train(now.index, server.broadcast(), knobs, {}, paid) for one in clients]
    updates, told = [one.update for one in uploads], [one.telemetry for one in uploads]
    return server.release(now.index, knobs, now.noise, updates, told)


def _timed(times: list[float], call: Callable[..., Any], *arguments: Any) -> Any:
    """Call, and note the milliseconds of CPU that it took."""
    start = time.process_time()
    result = call(*arguments)
    times.append(1000 * (time.process_time() - start))
    return result


@contextmanager
def _synced(times: list[float]) -> Iterator[Callable[[], None]]:
    """Note the milliseconds in fsync; what is given ends a round."""
    real, spent = os.fsync, [0.0]

    def fsync(fd: Any) -> None:
        start = time.perf_counter()
        real(fd)
        spent[0] += 1000 * (time.perf_counter() - start)

    def rest() -> None:
        times.append(spent[0])
        spent[0] = 0.0

    os.fsync = fsync
    try:
        yield rest
    finally:
        os.fsync = real


if __name__ == "__main__":
    main()
