"""`dpilot train` can be stopped at any moment, and says how to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.trainer import Trainer
from experiments.cli import main

COMMAND = ["train", "--clients", "6", "--delta", "0.05", "--rounds", "4", "--local-steps", "1", "--partition", "iid"]
COMMAND += ["--executor", "vectorized", "--parallel", "rows", "--episodes", "4", "--environments", "2"]
COMMAND += ["--validation-instances", "1"]


def _folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def _weights(folder: Path) -> Any:
    return json.loads((folder / "controller" / "controller.json").read_text())["weights_sha256"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("_measure", "at its beginning, without a checkpoint yet"),
        ("_update", "before its first update"),
    ],
)
def test_a_training_stopped_early_goes_on(
    method: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--runs", str(tmp_path / "whole")]) == 0

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, method, stop)
        capsys.readouterr()
        assert main([*COMMAND, "--runs", str(tmp_path / "stopped")]) == 130
    folder = _folder(tmp_path / "stopped")
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith(f"'{folder}' holds the training {words}; to go on: dpilot train --resume {folder}")
    assert main(["train", "--resume", str(folder)]) == 0
    assert _weights(folder) == _weights(_folder(tmp_path / "whole"))
    events = EventAccumulator(str(folder))
    events.Reload()
    steps = [event.step for event in events.Scalars("validation/accuracy")]
    assert steps == sorted(set(steps))

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["train", "--resume", str(folder)]) == 0
    assert "is complete, so nothing was changed" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
