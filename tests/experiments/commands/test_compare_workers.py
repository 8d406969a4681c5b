"""`dpilot compare` on workers gives what it gives in one process, whatever kind of controller is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents import TrainingConfig, train
from experiments.cli import main

OPTIONS = ["--clients", "6", "--delta", "0.05", "--rounds", "2", "--local-steps", "1", "--partition", "iid"]
OPTIONS += ["--executor", "vectorized", "--seeds", "2", "--search-instances", "2", "--yes"]
MINE = """
from policies import Controller, Parameter


class Mine(Controller):
    name, summary, label_format = "mine", "less over the rounds", "mine {first:g}"
    parameters = (Parameter("first", "clip norm of the first round", 0.4),)

    def decide(self, seen):
        return {"clip_norm": self.values["first"] / (1 + seen.progress)}
"""
ITS_OWN = {"created", "wall_seconds", "command"}


def _result(root: Path) -> dict[str, Any]:
    [folder] = (path for path in root.iterdir() if "compare" in path.name)
    content = json.loads((folder / "comparison.json").read_text())
    return {name: value for name, value in content.items() if name not in ITS_OWN}


@pytest.mark.parametrize(
    "backend",
    ["processes", pytest.param("ray", marks=pytest.mark.long), pytest.param("dask", marks=pytest.mark.long)],
)
def test_workers_give_what_one_process_gives(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip({"processes": "joblib", "ray": "ray", "dask": "distributed"}[backend])
    (tmp_path / "mine.py").write_text(MINE)
    own = {"clients": 6, "rounds": 2, "partition": "iid", "decision_rounds": 1, "executor": "vectorized"}
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    trained = train(own, short, tmp_path / "training")
    controllers = ["fixed:0.5", "best-fixed", "aqc", "tuned:exponential-decay", "random:3", f"ppo:{trained.folder}"]
    command = ["compare", *OPTIONS, "--controllers", *controllers, f"{tmp_path / 'mine.py'}:Mine"]
    assert main([*command, "--runs", str(tmp_path / "one")]) == 0
    assert main([*command, "--runs", str(tmp_path / "two"), "--jobs", "2", "--backend", backend]) == 0
    assert "7 of 7 jobs" in capsys.readouterr().err
    assert _result(tmp_path / "two") == _result(tmp_path / "one")


def test_bad_workers_are_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--jobs", "0"], ["--gpus-per-job", "0.5"], ["--backend", "ray", "--address", "head"]):
        assert main(["compare", *OPTIONS, "--controllers", "fixed:0.5", *options, "--runs", str(tmp_path / "r")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "r").exists()
