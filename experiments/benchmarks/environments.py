"""Steps of the environment: one alone, and several as rows of one batch in the same process."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from envs.core import EnvCore
from envs.instances import instance_seeds
from experiments.commands.train import TrainCommand
from fl_core.run.config import RunSettings

ROWS = 8
REPEATS = 9


@dataclass(frozen=True)
class StepTimes:
    """Processor seconds per step and environment, each the median of interleaved episodes.

    Attributes:
        alone: one environment.
        batched: `ROWS` of them.
        ratio: how many times as fast the batch is per environment, median over pairs of neighbouring episodes.
    """

    alone: float
    batched: float
    ratio: float


def step_times() -> StepTimes:
    """Time the environment that `dpilot demo` trains on."""
    setting = TrainCommand().setting().replace(executor="vectorized")
    cores = [EnvCore(setting, rows) for rows in (1, ROWS)]
    for core in cores:
        _seconds_per_step(core)  # traces the programs, and finds what the rewards are measured against
    pairs = [(_seconds_per_step(cores[0]), _seconds_per_step(cores[1])) for _ in range(REPEATS)]
    alone, batched = zip(*pairs, strict=True)
    ratio = statistics.median(one / each for one, each in pairs)
    return StepTimes(statistics.median(alone), statistics.median(batched), ratio)


def _seconds_per_step(core: EnvCore) -> float:
    """Time an episode of every row without its reset, in seconds per step and row."""
    core.reset(range(core.runs), [RunSettings(seed=seed) for seed in instance_seeds("train", core.runs)])
    actions, steps = np.zeros((core.runs, len(core.knobs))), 0
    began = time.process_time()
    while not core.finished.all():
        core.step(actions)
        steps += core.runs
    return (time.process_time() - began) / steps
