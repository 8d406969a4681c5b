"""rl_zoo3 trains with a hyperparameter file of the user's; its model is imported and compared like one of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments import main
from tests.import_graph import ROOT

pytestmark = pytest.mark.long
ID = "DPilot/Clip-digits-v0"
CLIENTS, ROUNDS = 6, 3


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_model_is_trained_imported_and_compared(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rl_zoo3")
    own = {"ppo": {"n_envs": 2, "n_steps": 6, "batch_size": 12}, "sac": {"learning_starts": 6, "buffer_size": 100}}
    common = {"policy": "MlpPolicy", "n_timesteps": 24, "policy_kwargs": "dict(net_arch=[16])"}
    (tmp_path / "mine.yml").write_text(yaml.safe_dump({ID: {**common, **own[algo]}}))
    command = [sys.executable, "-m", "rl_zoo3.train", "--algo", algo, "--env", ID, "--gym-packages", "envs"]
    command += ["-conf", "mine.yml", "-f", "logs", "--eval-freq", "-1", "--seed", "1", "--device", "cpu"]
    command += ["--env-kwargs", f"clients:{CLIENTS}", f"rounds:{ROUNDS}", "reward:'final-accuracy'"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [model] = tmp_path.glob(f"logs/{algo}/*/DPilot-Clip-digits-v0.zip")
    monkeypatch.chdir(tmp_path)
    setting = ["--task", "digits", "--clients", str(CLIENTS), "--rounds", str(ROUNDS)]
    assert main(["import", str(model), *setting, "--knobs", "clip_norm", "--signals", "public"]) == 0
    [folder] = (tmp_path / "runs").iterdir()
    compared = ["compare", *setting, "--seeds", "2", "--runs", "found", "--controllers", "fixed", f"{algo}:{folder}"]
    assert main(compared) == 0
    [report] = (tmp_path / "found").rglob("report.md")
    assert f"{algo.upper()} (DPilot-Clip-digits-v0)" in report.read_text()
