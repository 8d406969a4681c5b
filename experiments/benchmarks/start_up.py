"""`python -m experiments.benchmarks.start_up`: processor seconds until lists, help and refusals are answered."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from rich.console import Console

from experiments.commands.catalog import COMMANDS
from experiments.commands.lists import LISTS
from experiments.reports.tables import Table

REFUSED = (
    "lst",
    "run --nosuch 1",
    "run --task nosuch",
    "run --method nosuch",
    "run --model nosuch",
    "run --dataset nosuch",
    "run --set nosuch=1",
    "run --partition nosuch",
    "run --optimizer nosuch",
    "run --epsilon -1",
    "run --noise-multiplier -1",
    "run --rounds 0",
    "run --rounds x",
    "run --seed -1",
    "run --controller nosuch",
    "run --controller fixed:-1",
    "run --controller ppo:nosuch",
    "run --show nosuch",
    "run --loggers nosuch",
    "train --algo nosuch",
    "train --knobs nosuch",
    "train --reward nosuch",
    "train --gamma 2",
    "train --agent.nosuch 1",
    "compare --controllers nosuch",
    "compare --seeds 0",
    "compare --vary nosuch=1",
    "compare --generator nosuch",
    "compare --backend nosuch",
    "audit --canaries 0",
    "audit --clip-norm -1",
    "paper nosuch",
    "paper fedglp-adp-table1 --measure nosuch",
    "paper fedglp-adp-table1 --blocks nosuch",
    "paper fedglp-adp-table1 --methods nosuch",
    "paper fedglp-adp-table1 --cells nosuch",
    "paper fedglp-adp-table1 --cells epsilon=99",
    "paper fedglp-adp-table1 --resume nosuch",
    "paper --resume nosuch",
    "paper fedglp-adp-table1 --change nosuch=1",
    "paper fedglp-adp-table1 --change rounds=-1",
    "paper fedglp-adp-table1 --change partition=nosuch",
    "paper fedglp-adp-table1 --change clip_norm=-1",
    "paper fedglp-adp-table1 --change controller=nosuch",
    "export --format nosuch",
    "rank nosuch",
    "ledger x --accountants nosuch",
    "ledger nosuch",
    "ledger",
    "import nosuch.zip --knobs nosuch",
    "import nosuch.zip",
    "run --resume nosuch",
    "train --resume nosuch",
    "compare --resume nosuch",
    "audit --resume nosuch",
    "run --device nosuch",
    "export nosuch",
    "demo --episodes 0",
    "list nosuch",
    "completion nosuch",
)
"""Command lines with a name or a number that is refused."""
ANSWERED = (
    "--version",
    "--help",
    *(f"{command} --help" for command in COMMANDS),
    "list",
    *(f"list {name}" for name in LISTS),
    "paper",
    "paper --methods nosuch",
    "paper --cells nosuch",
    *REFUSED,
)
"""Command lines that are answered from names and numbers alone."""
_REPEATS = 3
LIMIT = 0.5
"""Seconds in which a line is to be answered."""


def processor_seconds(arguments: str, cache: str) -> float:
    """Measure user and system seconds of a command line in a process of its own, the least of some repeats.

    Args:
        arguments: the command line.
        cache: folder of compiled modules, which installations have; the first run fills it, and is not measured.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return min(_once(arguments.split(), environment | {"PYTHONPYCACHEPREFIX": cache}) for _ in range(1 + _REPEATS))


def _once(arguments: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "experiments.cli", *arguments]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as cache:
        taken = {line: processor_seconds(line, cache) for line in ANSWERED}
    rows = tuple((line, f"{seconds:.2f} s") for line, seconds in taken.items())
    fast = sum(seconds < LIMIT for seconds in taken.values())
    title = f"Start-up: {fast} of {len(taken)} lines are answered in less than {LIMIT} s of processor time"
    Console(width=100).print(Table(("dpilot", "processor"), rows, title=title).terminal())


if __name__ == "__main__":
    main()
