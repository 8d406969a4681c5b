"""`python -m experiments.benchmarks.workers [BACKEND]`: jobs per second over several workers, as a share of linear.

Each worker has done one job before time is taken, so that its start and its libraries do not count. On a machine whose
cores others use too the share is too low.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

from rich.console import Console

from envs import Setting
from envs.playing import RowProgress, run_to_the_end
from envs.processes import usable_cores
from experiments.contenders.environments import Environments
from experiments.records.finished import Job
from experiments.reports.tables import Table
from experiments.workers.options import WorkerOptions
from experiments.workers.runner import Runner, Watch, Work
from experiments.workers.starting import start_workers
from fl_core.run.config import RunSettings
from policies import FixedClip

SETTING = Setting.of(task="digits", knobs="clip_norm", executor="vectorized", rounds=40)
JOBS = 24


def play(seed: int, environments: Environments, progress: RowProgress) -> dict[str, Any]:
    """Play one run, as a job."""
    core = environments.of(SETTING)
    run_to_the_end(core, FixedClip.for_env(core, clip_norm=0.5), [RunSettings(seed=seed)], progress)
    return {"accuracy": core.final_accuracy(0)}


def jobs_per_second(backend: str, workers: int, jobs: int = JOBS) -> float:
    """Measure the jobs per second of a number of workers that have all begun to work before."""
    environments = Environments()
    works = [Work(Job(f"seed-{seed}", {"seed": seed}), partial(play, seed, environments)) for seed in range(jobs)]
    with start_workers(WorkerOptions(jobs=workers, backend=backend)) as started:
        runner = Runner(backend=started)
        runner.run(works[: 4 * workers], Watch())
        began = time.monotonic()
        runner.run(works, Watch())
        return jobs / (time.monotonic() - began)


def main() -> None:
    """Print the table."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "processes"
    counts = [count for count in (1, 2, 4, 8, 16) if count <= usable_cores()]
    speeds = [jobs_per_second(backend, count) for count in counts]
    rows = tuple(
        (str(count), f"{speed:.2f}", f"{speed / speeds[0] / count:.0%}")
        for count, speed in zip(counts, speeds, strict=True)
    )
    title = f"{JOBS} runs of the task digits, {SETTING.federation.rounds} rounds each, by workers of {backend}"
    Console(width=100).print(Table(("workers", "jobs per second", "share of linear"), rows, title=title).terminal())


if __name__ == "__main__":
    main()
