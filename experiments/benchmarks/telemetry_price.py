"""`python -m experiments.benchmarks.telemetry_price`: the accuracy that paid telemetry costs.

The same rule, adaptive quantile clipping, once from the exact share of unclipped clients, which its ε does not cover,
and once from the noised share that is paid for out of the same ε; on the same held-out instances.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from scipy import stats

from envs import Setting
from envs.instances import instance_seeds
from envs.playing import run_to_the_end
from experiments.contenders.bench import Bench
from experiments.contenders.preparing import make_players
from experiments.contenders.progress import rounds_bar
from experiments.reports.tables import Table
from fl_core.data.datasets import dataset_available
from fl_core.run.config import RunSettings
from fl_core.run.plan import FloatArray

TASKS = ("digits", "mnist5k")
SHARES = (0.05, 0.1)
SEEDS = 20


def main() -> None:
    """Print the table."""
    rows = []
    for task in (name for name in TASKS if dataset_available(name)):
        exact = accuracies(task, "aqc-exact", 0.0)
        rows.append((task, "exact, unpaid", interval(exact), "–"))
        for share in SHARES:
            paid = accuracies(task, "aqc", share)
            rows.append((task, f"{share:.0%}", interval(paid), interval(paid - exact)))
    headers = ("task", "share of privacy for the bit", "global accuracy", "difference to exact, points")
    title = f"Final accuracy of aqc, {SEEDS} paired held-out seeds, mean [95 %]"
    Console(width=100).print(Table(headers, tuple(rows), title=title).terminal())


def accuracies(task: str, controller: str, share: float) -> FloatArray:
    """Measure a controller's final global accuracy in percent on every seed `[seeds]`."""
    bench = Bench(Setting.of(task, telemetry_share=share, instances="test"), 1)
    (player,) = make_players([controller], bench)
    # Accuracy is measured at the end only.
    core = bench.environments.of(player.setting.replace(evaluate_every_round=False), SEEDS)
    with rounds_bar(core.task.federation.rounds * SEEDS, f"{task}, {controller}, share {share:g}") as told:
        instances = [RunSettings(seed=seed) for seed in instance_seeds("test", SEEDS)]
        run_to_the_end(core, player.builds[0](core), instances, told)
    return 100 * np.array([core.final_accuracy(row) for row in range(SEEDS)])


def interval(values: FloatArray) -> str:
    """Write the mean and its 95 % bootstrap interval."""
    found = stats.bootstrap((values,), np.mean, rng=0).confidence_interval
    return f"{values.mean():.1f} [{found.low:.1f}, {found.high:.1f}]"


if __name__ == "__main__":
    main()
