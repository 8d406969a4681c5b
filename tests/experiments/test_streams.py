"""Comparisons end well whatever the streams of the terminal and the temporary folder are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["--clients", "6", "--delta", "0.05", "--partition", "iid", "--executor", "vectorized", "--local-steps", "1"]
COMPARE = ["compare", *SMALL, "--rounds", "1", "--seeds", "1", "--controllers", "fixed:0.5", "fixed:1"]
TRAIN = ["train", *SMALL, "--rounds", "1", "--decision-rounds", "1", "--episodes", "2", "--environments", "2"]


def typed(arguments: list[str | bytes], place: Path, streams: str = "", **variables: str) -> tuple[int, str, str]:
    """Run a command in a shell that redirects its streams; returns its status, output and errors."""
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "experiments.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False)
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1")


@pytest.mark.long
@pytest.mark.parametrize(
    ("streams", "variables"),
    [
        ("2>&-", {"PYTHONIOENCODING": "cp1252", "TMPDIR": "/nonexistent"}),
        (">&- 2>&-", {}),
        ("", {"PYTHONIOENCODING": "cp1252"}),
        (">&-", {}),
    ],
)
def test_a_comparison_is_written_whatever_the_streams_are(
    streams: str, variables: dict[str, str], tmp_path: Path
) -> None:
    status, output, errors = typed([*COMPARE, "--runs", "runs"], tmp_path, streams, **variables)
    assert status == 0
    assert "Traceback" not in output + errors
    assert ("Report: " in output) == (">&-" not in streams.split())
    (folder,) = (tmp_path / "runs").iterdir()
    for name in ("comparison.json", "comparison.csv", "report.md", "report.html", "overview.png"):
        content = (folder / name).read_bytes()
        assert content
        assert b"round/s" not in content, "the progress bar went into a file"


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    status, _, errors = typed([*COMPARE, "--runs", b"\xff\xfe"], tmp_path)
    assert status == 2
    assert errors.startswith("dpilot: The argument ")
    assert errors.endswith("is no valid text; write it in UTF-8.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["rows", "processes"])
def test_a_training_without_a_temporary_folder_works_or_says_so(parallel: str, tmp_path: Path) -> None:
    status, output, errors = typed([*TRAIN, "--parallel", parallel, "--runs", "runs"], tmp_path, TMPDIR="/nonexistent")
    assert "Traceback" not in output + errors
    assert status == 0
