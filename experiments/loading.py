"""Loading of libraries: a limit on the address space (`ulimit -v`) that they do not fit into is told before.

PyTorch and protobuf do not report every failed allocation while they are loaded: the process aborts, or ends in an
error about something else, and OpenBLAS tries again for ever. So a process of its own tries it first, where such a
limit is set.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

from experiments.terminal import MEMORY, LibrariesDoNotFit

AMPLE = 8_000_000_000
"""Bytes of address space above which nothing is tried: all libraries, CUDA's among them, took 3.7e9 when measured."""
SECONDS = 30
"""Processor time that loading may take; it took 5 s when measured. Load of the machine does not add to it."""
_TRY = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
seconds, most = int(sys.argv[3]), resource.getrlimit(resource.RLIMIT_CPU)[1]
resource.setrlimit(resource.RLIMIT_CPU, (seconds if most < 0 else min(seconds, most), most))
sys.path[:] = json.loads(sys.argv[1])
import torch, torch.utils.tensorboard
from experiments.commands.catalog import COMMANDS
COMMANDS[sys.argv[2]].load()
"""
_FRAMES = re.compile(r"^ .*$", re.MULTILINE)
"""Lines of a traceback that quote code: a module may be named after memory."""
_DEADLY = {"SIGABRT", "SIGSEGV", "SIGBUS", "SIGKILL", "SIGXCPU"}
_KILLED = tuple(-one for one in signal.Signals if one.name in _DEADLY)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from searching what is being loaded, again and again, where it finds nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def require_room_for_libraries(command: str) -> None:
    """Try to load what a command needs, where the address space is limited to less than `AMPLE`.

    Args:
        command: name of a command.

    Raises:
        LibrariesDoNotFit: they cannot be loaded under the limit.
    """
    limit = _limit()
    if limit is None or limit >= AMPLE:
        return
    arguments = [sys.executable, "-c", _TRY, json.dumps(sys.path), command, str(SECONDS)]
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = _FRAMES.sub("", done.stderr.decode(errors="replace"))
    # What fails for another reason fails again in this process, and is told there.
    if done.returncode in _KILLED or (done.returncode and MEMORY.search(said)):
        raise LibrariesDoNotFit(
            f"The limit on memory (`ulimit -v`) is {limit / 1e9:.3g} GB, into which the libraries of `dpilot "
            f"{command}` cannot be loaded; with CUDA's they take about 4 GB, beside the work: "
            "allow 6 GB, or lift the limit."
        )


def _limit() -> int | None:
    """Bytes that the address space may take; None where there is no limit or no such thing."""
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit
