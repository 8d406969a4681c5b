"""The environments that a policy is trained in.

Every rollout begins with fresh episodes on instances that are assigned to the rows, so nothing has to be remembered of
an environment between two updates.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecMonitor, VecNormalize

from envs import DPilotEnv, DPilotVecEnv, make_core
from envs.instances import instance_seeds
from fl_core.config import RunSettings
from fl_core.rounds import RoundPlan


class OneInstance(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose episodes all play the instance that was set last; lives in a worker process."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self._instance: int | None = None

    def set_instance(self, seed: int) -> None:
        """The instance of coming episodes."""
        self._instance = seed

    def references(self, seeds: Sequence[int]) -> list[float]:
        """As `EnvCore.references`."""
        return self.env.unwrapped.core.references(seeds)  # type: ignore[attr-defined, no-any-return]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode on the instance."""
        return self.env.reset(seed=self._instance if seed is None else seed, options=options)


def _make_worker(settings: Mapping[str, Any]) -> gym.Env[Any, Any]:
    torch.set_num_threads(1)  # two processes with two threads each on two cores are many times slower
    return OneInstance(DPilotEnv(**settings))


class Rollouts:
    """Environments of a training, rewards normalised, observations as they are.

    Attributes:
        venv: what the learner steps.
    """

    def __init__(self, settings: Mapping[str, Any], rows: int, decisions: int, parallel: str, gamma: float):
        """Start the environments.

        Args:
            settings: keyword arguments of an environment.
            rows: environments side by side.
            decisions: decisions in a whole episode.
            parallel: `rows` or `processes`.
            gamma: discount, for the normalisation of rewards.
        """
        self._rows = rows
        self._decisions = decisions
        self._batch: DPilotVecEnv | None = None
        self._processes: SubprocVecEnv | None = None
        inner: VecEnv
        if parallel == "rows":
            inner = self._batch = DPilotVecEnv(rows, **settings)
        else:
            inner = self._processes = _start_processes(settings, rows)
        self.venv = VecNormalize(VecMonitor(inner), norm_obs=False, norm_reward=True, gamma=gamma)

    def assign(self, instances: Sequence[int]) -> None:
        """Set the instance that each row plays from its next reset on.

        A row whose episode ends before the rollout does (its ledger refused) plays its instance again.
        """
        if self._batch is not None:
            # Rows that end together start again in their order, so the list repeats often enough for any early end.
            self._batch.set_instances(list(instances) * (self._decisions + 1))
        if self._processes is not None:
            for row, seed in enumerate(instances):
                self._processes.env_method("set_instance", seed, indices=[row])

    def references(self, instances: Sequence[int]) -> list[float]:
        """Final accuracy of the task's default clip norm on instances; the first row's environment remembers it."""
        if self._processes is not None:
            return list(self._processes.env_method("references", list(instances), indices=[0])[0])
        assert self._batch is not None
        return self._batch.core.references(instances)

    @property
    def reward_statistics(self) -> dict[str, float]:
        """Running mean, variance and count of the returns by which rewards are normalised."""
        returns = self.venv.ret_rms
        return {"mean": float(returns.mean), "var": float(returns.var), "count": float(returns.count)}

    @reward_statistics.setter
    def reward_statistics(self, values: Mapping[str, float]) -> None:
        returns = self.venv.ret_rms
        returns.mean, returns.var = np.array(values["mean"]), np.array(values["var"])
        returns.count = float(values["count"])

    def close(self) -> None:
        """End the worker processes; those that an interrupt has already ended do no harm."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
            self.venv.close()


def _start_processes(settings: Mapping[str, Any], rows: int) -> SubprocVecEnv:
    """One environment per process. They are not forked: CUDA and thread pools do not survive that."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if method == "forkserver":
        multiprocessing.get_context(method).set_forkserver_preload([__name__])  # libraries are loaded once for all
    return SubprocVecEnv([partial(_make_worker, dict(settings)) for _ in range(rows)], start_method=method)


def choose_executor(settings: Mapping[str, Any], rows: int) -> str:
    """The executor that the environments' local training takes, measured where the settings leave it to `auto`.

    It is chosen once per training and kept: results of the two differ in the last bits, and a training that goes on
    after an interruption must not choose anew. The measurement takes one round, which is not counted.
    """
    core = make_core(rows, **{**settings, "reward": "final-accuracy"})
    asked = core.task.federation.executor
    if asked != "auto":
        return asked
    core.reset(range(rows), [RunSettings(seed=seed) for seed in instance_seeds("train", rows)])
    core.federation.run_round(RoundPlan.constant(rows, core.task.clip_norm))
    measured = core.federation.executor.choice.split()[0]
    return measured if measured in ("vectorized", "sequential") else "sequential"


def choose_parallel(asked: str, executor: str, device: torch.device) -> str:
    """`rows` or `processes`: rows where stacked clients fill the processor better, processes where cores are idle."""
    if asked != "auto":
        return asked
    stacked = device.type == "cuda" or executor == "vectorized"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return "rows" if stacked or cores == 1 else "processes"


def decisions_per_episode(rounds: int, decision_rounds: int) -> int:
    """Decisions in an episode that ends at its last round."""
    return math.ceil(rounds / decision_rounds)
