"""Commands that are killed at random moments go on, and end as if nothing had happened; as many trials as asked for.

`KILL_TRIALS=200 pytest -m long tests/experiments/test_kills.py` takes hours; KILL_SEED gives other moments.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TRIALS, SEED = int(os.environ.get("KILL_TRIALS", "8")), int(os.environ.get("KILL_SEED", "0"))
MOST_KILLS = 3
"""Kills of one trial; after them the command is left to end."""
SMALL = ["--clients", "6", "--delta", "0.05", "--partition", "iid", "--executor", "vectorized"]
COMMANDS = {
    "run": ["run", *SMALL, "--rounds", "60", "--controller", "best-fixed", "--search-instances", "1"],
    "train": ["train", *SMALL, "--rounds", "8", "--episodes", "24", "--environments", "2", "--parallel", "rows"],
    "compare": ["compare", *SMALL, "--rounds", "10", "--seeds", "2", "--search-instances", "1"],
    "paper": ["paper", "fedglp-adp-table3", "--dataset", "digits", "--model", "mlp", "--rounds", "3", "--jobs", "2"],
}
COMMANDS["compare"] += ["--controllers", "fixed:0.5", "best-fixed", "tuned:exponential-decay", "random"]
MEASURED = {"created", "wall_seconds", "command", "seconds", "seconds_per_round", "folder", "digest"}
"""What differs between two runs of one command: clocks, places, and digests over these."""


def result_of(command: str, folder: Path) -> Any:
    """Return everything that a command's folder says, but for clocks and places."""
    if command == "run":
        return [(folder / name).read_text() for name in ("rounds.csv", "summary.json", "ledger.json", "charges.jsonl")]
    if command == "train":
        return json.loads((folder / "controller" / "controller.json").read_text()), without(
            json.loads((folder / "summary.json").read_text())
        )
    if command == "compare":
        return without(json.loads((folder / "comparison.json").read_text()))
    rows = list(csv.DictReader((folder / "result.csv").read_text().splitlines()))
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in rows]


def without(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in MEASURED}


def start(arguments: list[str], place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "experiments.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (place / "printed.txt").open("ab") as printed:
        return subprocess.Popen(command, cwd=place, env=environment, stdout=printed, stderr=printed)


def folder_in(place: Path) -> Path | None:
    found = [path for path in place.glob("runs/*") if path.is_dir()]
    return found[0] if found else None


def with_kills(command: str, place: Path, chance: random.Random, seconds: float) -> int:
    """Run a command to its end, killed a few times on the way; returns how often."""
    kills = 0
    while True:
        folder = folder_in(place)
        can_go_on = folder is not None and any((folder / name).exists() for name in ("order.json", "checkpoint.json"))
        if folder is not None and not can_go_on:  # killed in the moment between the folder and its order
            folder.rename(place / f"unordered-{kills}")
        arguments = [command, "--resume", str(folder)] if can_go_on else COMMANDS[command]
        process = start(arguments, place)
        try:
            code = process.wait(None if kills == MOST_KILLS else chance.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        assert code == 0, (place / "printed.txt").read_text()
        return kills


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, float]]:
    """Return the result of each command that nobody kills, and its seconds."""
    found = {}
    for command in COMMANDS:
        place = tmp_path_factory.mktemp(command)
        began = time.monotonic()
        assert start(COMMANDS[command], place).wait() == 0, (place / "printed.txt").read_text()
        folder = folder_in(place)
        assert folder is not None
        found[command] = result_of(command, folder), time.monotonic() - began
    return found


@pytest.mark.long
@pytest.mark.parametrize("trial", range(TRIALS))
def test_a_killed_command_goes_on_to_the_same_result(
    trial: int, whole: dict[str, tuple[Any, float]], tmp_path: Path
) -> None:
    command = list(COMMANDS)[trial % len(COMMANDS)]
    result, seconds = whole[command]
    kills = with_kills(command, tmp_path, random.Random(SEED * 10_000 + trial), seconds)
    folder = folder_in(tmp_path)
    assert folder is not None
    assert result_of(command, folder) == result
    assert not list(folder.rglob(".*.tmp"))
    print(f"{command}: {kills} kills")
