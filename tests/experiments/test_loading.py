"""Commands under a limit on the address space end in one sentence, whatever the libraries do there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import loading
from experiments.cli import main
from experiments.terminal import LibrariesDoNotFit

resource = pytest.importorskip("resource")

ROOT = Path(__file__).parents[2]


def under_limit(size: int, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); "
    limited += "from experiments.cli import main; sys.exit(main(sys.argv[2:]))"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", limited, str(size), *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["run", pytest.param("train", marks=pytest.mark.long)])
def test_libraries_that_do_not_fit_are_told_with_the_limit(command: str, tmp_path: Path) -> None:
    done = under_limit(600_000_000, tmp_path, command, "--clients", "8", "--rounds", "1")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"(`ulimit -v`) is 0.6 GB, into which the libraries of `dpilot {command}` cannot be loaded" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "train", "compare"])
@pytest.mark.parametrize("size", [1.0, 2.0, 3.0, 3.2, 3.3, 3.5, 3.7, 4.0, 6.0])
def test_a_command_under_any_limit_works_or_ends_in_one_sentence(size: float, command: str, tmp_path: Path) -> None:
    options = ["--clients", "6", "--delta", "0.05", "--partition", "iid", "--rounds", "2", "--runs", str(tmp_path)]
    options += {"run": [], "train": ["--episodes", "2", "--decision-rounds", "1", "--parallel", "rows"]}.get(
        command, ["--seeds", "1", "--controllers", "fixed:0.5", "fixed:1"]
    )
    done = under_limit(int(size * 1_024_000_000), tmp_path, command, *options)
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("dpilot: ") and "warning" not in line]
    assert len(said) == done.returncode


@pytest.mark.parametrize(
    ("tried", "fits"),
    [
        ("import os; os.abort()", False),
        ("import sys; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass", False),
        ("raise MemoryError", False),
        ("raise TypeError('could not build: out of memory')", False),
        ("raise ImportError('no such library')", True),
        ("import json\ndef read_memory(text): return json.loads(text)\nread_memory('{')", True),
        ("", True),
    ],
)
def test_only_what_comes_of_memory_is_told_so(tried: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_limit", lambda: 5_000_000_000)
    monkeypatch.setattr(loading, "_TRY", "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + tried)
    if fits:
        loading.require_room_for_libraries("run")
        return
    with pytest.raises(LibrariesDoNotFit, match=r"is 5 GB, .* allow 6 GB, or lift the limit\.$"):
        loading.require_room_for_libraries("run")


@pytest.mark.parametrize("limit", [None, loading.AMPLE])
def test_without_a_low_limit_nothing_is_tried(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_limit", lambda: limit)
    monkeypatch.setattr(loading, "_TRY", "raise MemoryError")
    loading.require_room_for_libraries("run")
    assert main(["list", "tasks", "--quiet"]) == 0
