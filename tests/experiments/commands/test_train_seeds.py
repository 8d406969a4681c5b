"""`dpilot train --seeds` trains several controllers as jobs; each equals the one that is trained alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.records.order import FILE

FEDERATION = ["--clients", "6", "--rounds", "2", "--local-steps", "1", "--partition", "iid", "--executor", "vectorized"]
AGENT = ["--episodes", "2", "--environments", "2", "--validation-instances", "1", "--parallel", "rows"]
COMMAND = ["train", *FEDERATION, "--delta", "0.05", *AGENT, "--network", "4"]


def _controller(folder: Path) -> tuple[Any, bytes]:
    about = json.loads((folder / "controller" / "controller.json").read_text())
    return about, b"".join(path.read_bytes() for path in sorted((folder / "controller").glob("*.safetensors")))


def test_seeds_are_trained_as_each_alone_and_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--seed", "3", "--seeds", "2", "--jobs", "2", "--runs", str(tmp_path / "both")]) == 0
    printed = capsys.readouterr()
    assert "2 of 2 jobs" in printed.err
    assert printed.out.count("Validation accuracy") == 2
    [folder] = (tmp_path / "both").iterdir()
    assert f"'ppo:{folder}/seed-*'" in printed.out
    for seed in (3, 4):
        assert main([*COMMAND, "--seed", str(seed), "--runs", str(tmp_path / str(seed))]) == 0
        [alone] = (tmp_path / str(seed)).iterdir()
        assert _controller(folder / f"seed-{seed}") == _controller(alone)
    kept = (folder / "seed-3" / "summary.json").stat().st_mtime_ns
    own = _controller(folder / "seed-4")
    for path in (folder / "seed-4").iterdir():  # as if it had not begun
        if path.name != FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["train", "--resume", str(folder)]) == 0
    assert _controller(folder / "seed-4") == own
    assert (folder / "seed-3" / "summary.json").stat().st_mtime_ns == kept
    compare = ["compare", *FEDERATION, "--delta", "0.05", "--seeds", "1", "--controllers", f"ppo:{folder}/seed-*"]
    assert main([*compare, "--runs", str(tmp_path / "compared")]) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--seeds", "0"], "seeds is 0, but it must be a whole number of at least 1"),
        (["--jobs", "2"], "--jobs 2 is given, but there is one training, in this process; add --seeds"),
        (["--seeds", "3", "--jobs", "0"], "jobs is 0"),
        (["--seeds", "1000000"], "seeds is 1000000, which takes"),
    ],
)
def test_bad_seeds_and_workers_are_refused_before_anything_is_written(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *options, "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
