"""Commands that find no room, or no permission, end in one sentence; what they keep goes on to the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from tests.experiments.test_kills import ROOT, folder_in, result_of

resource = pytest.importorskip("resource")

SMALL = ["--clients", "6", "--delta", "0.05", "--partition", "iid", "--executor", "vectorized", "--local-steps", "1"]
COMMANDS = {
    "run": ["run", *SMALL, "--rounds", "6", "--controller", "best-fixed", "--search-instances", "1"],
    "train": ["train", *SMALL, "--rounds", "4", "--episodes", "4", "--environments", "2", "--parallel", "rows"],
    "compare": ["compare", *SMALL, "--rounds", "3", "--seeds", "1", "--search-instances", "1"],
    "paper": ["paper", "fedglp-adp-table3", "--dataset", "digits", "--model", "mlp", "--rounds", "1"],
}
COMMANDS["compare"] += ["--controllers", "fixed:0.5", "best-fixed"]
COMMANDS["paper"] += ["--methods", "Dynamic"]
NOBODY = 65534


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes, as if the disk were full."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def unprivileged() -> Iterator[None]:
    """Act as a user whom permissions bind, which root is not."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def next_arguments(command: str, place: Path) -> list[str]:
    """Return what a user types next: `--resume` where the command has left its order, or the command again."""
    folder = folder_in(place)
    if folder is not None and not (folder / "order.json").exists():
        folder.rename(place / f"unordered-{len(list(place.iterdir()))}")
        return COMMANDS[command]
    return COMMANDS[command] if folder is None else [command, "--resume", str(folder)]


def require_sentence(printed: str, word: str = "") -> None:
    """Require that an error is told in one sentence, below progress bars, and nothing else."""
    assert "Traceback" not in printed
    assert "Error" not in printed
    lines = [line for line in printed.splitlines() if line.startswith("dpilot: ") and "warning" not in line]
    assert len(lines) == 1, printed
    assert word in lines[0]


def require_nothing_half_written(place: Path) -> None:
    assert [path for path in place.rglob("*") if path.is_file() and is_half_written(path)] == []


def is_half_written(path: Path) -> bool:
    if path.suffix == ".json":
        json.loads(path.read_text())
    may_be_empty = "tfevents" in path.name or path.suffix == ".png"  # the latter because figures are not drawn here
    return path.name.endswith(".tmp") or not (may_be_empty or path.stat().st_size)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the commands that have all the room they need, filled as tests ask for them."""
    return {}


def whole_result(command: str, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if command not in whole:
        (tmp_path / "whole").mkdir()
        monkeypatch.chdir(tmp_path / "whole")
        assert main(COMMANDS[command]) == 0
        whole[command] = result_of(command, folder_in(tmp_path / "whole") or tmp_path)
    return whole[command]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_room_says_so_and_goes_on_to_the_same_result(
    command: str,
    whole: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = whole_result(command, whole, tmp_path, monkeypatch)
    place = tmp_path / "full"
    place.mkdir()
    monkeypatch.chdir(place)
    size, failures, status = 100, 0, 2
    while status:
        capsys.readouterr()
        with files_of_at_most(size):
            status = main(next_arguments(command, place))
        require_nothing_half_written(place)
        if status:
            assert status in (1, 2)
            require_sentence(capsys.readouterr().err, "File too large")
            failures += 1
        size *= 3
    assert failures >= 3
    assert result_of(command, folder_in(place) or place) == expected


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_permission_says_so_and_goes_on_once_it_has_it(
    command: str,
    whole: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = whole_result(command, whole, tmp_path, monkeypatch)
    root = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if root in folder.parents:
            folder.chmod(0o755)  # temporary folders are their owner's alone
    place = tmp_path / "closed"
    place.mkdir(mode=0o555)
    monkeypatch.chdir(place)
    capsys.readouterr()
    with unprivileged():
        assert main(COMMANDS[command]) == 2
    require_sentence(capsys.readouterr().err, "Permission denied")
    assert list(place.iterdir()) == []

    place.chmod(0o755)
    with files_of_at_most(2700):
        assert main(COMMANDS[command]) == 2
    folder = folder_in(place)
    assert folder is not None
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folder.chmod(0o555)
    capsys.readouterr()
    with unprivileged():
        assert main(next_arguments(command, place)) == 2
    require_sentence(capsys.readouterr().err, "Permission denied")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept

    folder.chmod(0o755)
    assert main(next_arguments(command, place)) == 0
    assert result_of(command, folder) == expected


def is_mounted(place: Path, size: str, *options: str) -> bool:
    """Mount a file system of a size in memory, or change the size of one, where the system allows it."""
    change = ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={size}"]), "none", str(place)]
    try:
        return subprocess.run(change, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if not is_mounted(place, "16k"):
        pytest.skip("the user may not mount file systems")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def run_alone(arguments: list[str], place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_full_disk_says_so_and_goes_on_to_the_same_result(
    command: str, whole: dict[str, Any], small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole_result(command, whole, tmp_path, monkeypatch)
    jobs = ["--jobs", "2"] if command == "paper" else []
    size, failures = 16, 0
    while True:
        going_on = next_arguments(command, small_disk)
        done = run_alone([*going_on, *(jobs if "--resume" not in going_on else [])], small_disk)
        require_nothing_half_written(small_disk)
        if done.returncode == 0:
            break
        assert done.returncode in (1, 2)
        require_sentence(done.stderr, "No space left on device")
        failures, size = failures + 1, size * 4
        assert is_mounted(small_disk, f"{size}k", "remount")
    assert failures >= 2
    assert result_of(command, folder_in(small_disk) or small_disk) == expected
