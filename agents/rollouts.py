"""Environments that a policy is trained in.

Every rollout begins with fresh episodes on instances that are assigned to the rows, so nothing has to be remembered of
an environment between two updates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from envs import DPilotVecEnv, EnvCore, Setting
from envs.instances import instance_seeds
from envs.processes import DPilotProcessVecEnv, row_blocks, usable_cores
from fl_core.run.config import RunSettings
from fl_core.run.plan import RoundPlan


class Rollouts:
    """Environments of a training, rewards normalised, observations as they are.

    Attributes:
        venv: what the learner steps.
    """

    def __init__(self, setting: Setting, rows: int, parallel: str, gamma: float):
        """Start the environments.

        Args:
            setting: of the environments.
            rows: environments side by side.
            parallel: `rows` or `processes`.
            gamma: discount, for the normalisation of rewards.
        """
        face = DPilotVecEnv if parallel == "rows" else DPilotProcessVecEnv
        self._rows: DPilotVecEnv | DPilotProcessVecEnv = face(rows, setting=setting)
        self.venv = VecNormalize(VecMonitor(self._rows), norm_obs=False, norm_reward=True, gamma=gamma)

    def assign(self, instances: Sequence[int]) -> None:
        """Set the instance that each row plays from its next reset on.

        A row whose episode ends before the rollout does (its ledger refused) plays its instance again.
        """
        self._rows.set_instances(instances)

    def references(self, instances: Sequence[int]) -> list[float]:
        """Measure the final accuracy of the task's default clip norm on instances; the environments remember it."""
        return self._rows.references(instances)

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
        """End the worker processes that an interrupt has not ended already."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
            self.venv.close()


def choose_executor(setting: Setting, rows: int) -> str:
    """Choose the executor of the environments' local training, by measurement where the setting says `auto`.

    It is chosen once per training and kept: results of the two differ in the last bits, and a training that goes on
    after an interruption must not choose anew. The measurement takes one round, which is not counted.
    """
    core = EnvCore(setting.replace(reward="final-accuracy"), rows)
    asked = core.task.federation.executor
    if asked != "auto":
        return asked
    core.reset(range(rows), [RunSettings(seed=seed) for seed in instance_seeds("train", rows)])
    core.federation.run_round(RoundPlan.constant(rows, core.task.clip_norm))
    measured = core.federation.executor.kind
    return "sequential" if measured == "auto" else measured  # a method that trains nothing measures nothing


def choose_parallel(asked: str, executor: str, device: torch.device) -> str:
    """Choose `rows` where stacked clients fill the processor better, `processes` where cores would be idle."""
    if asked != "auto":
        return asked
    stacked = device.type == "cuda" or executor in ("vectorized", "compiled")
    return "rows" if stacked or usable_cores() == 1 else "processes"


def processes_of_rows(rows: int, parallel: str) -> list[int]:
    """Number of the process that plays each row `[rows]`."""
    blocks = row_blocks(rows, 1 if parallel == "rows" else min(rows, usable_cores()))
    return [place for place, block in enumerate(blocks) for _ in range(block.stop - block.start)]
