"""rl_zoo3 trains on our ids unmodified; its hyperparameter file is committed."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import agents
from envs.tasks import TASKS

FILE = Path(agents.__file__).parent / "rl_zoo3" / "ppo.yml"


def test_every_task_has_hyperparameters_whose_rollouts_are_whole_episodes() -> None:
    content = yaml.safe_load(FILE.read_text())
    assert set(content) == {f"DPilot/Clip-{task}-v0" for task in TASKS}
    for name, task in TASKS.items():
        own = content[f"DPilot/Clip-{name}-v0"]
        assert own["n_steps"] == task.federation.rounds
        assert own["batch_size"] == own["n_steps"] * own["n_envs"]


@pytest.mark.skipif(find_spec("rl_zoo3") is None, reason="the extra zoo is not installed")
def test_rl_zoo3_trains_on_an_id(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rl_zoo3.train", "--algo", "ppo", "--env", "DPilot/Clip-digits-v0"]
    command += ["--gym-packages", "envs", "-conf", str(FILE), "-f", str(tmp_path), "--eval-freq", "-1", "-n", "16"]
    command += ["--hyperparams", "n_envs:2", "n_steps:4", "batch_size:8", "--seed", "1"]
    command += ["--env-kwargs", "clients:10", "rounds:4", "executor:'vectorized'"]
    root = str(FILE.parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("ppo/*/DPilot-Clip-digits-v0.zip"))
