"""Processes end with the one that started them, also where that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import time
from fl_core.base.processes import process_context
from tests.fl_core.base.test_processes import wait_long

if __name__ == "__main__":
    process = process_context("json").Process(target=wait_long, daemon=True)
    process.start()
    print(process.pid, flush=True)
    time.sleep(60)
"""


def wait_long() -> None:
    from fl_core.base.processes import follow_parent

    follow_parent()
    time.sleep(60)


def _ended(pid: int, seconds: float) -> bool:
    for _ in range(int(seconds / 0.05)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(1.0)  # so that it waits
        os.kill(pid, signal.SIGHUP)  # of a terminal that closes: the parent's business
        assert not _ended(pid, 0.5)
        parent.kill()
    assert _ended(pid, 20.0)
