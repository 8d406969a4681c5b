"""The packages of the distribution: their names are common, so another one may hide or overwrite them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("fl_core", "envs", "policies", "agents", "experiments")
_HERE = Path(__file__).resolve().parents[2]
_FRONT_DOOR = "attach_stub(__name__, __file__)"
"""In the `__init__.py` of every package of ours."""


def require_own(*names: str) -> None:
    """Refuse to go on where another package hides one of these.

    Raises:
        ImportError: its message is the sentence of `hidden_package`.
    """
    sentence = hidden_package(names)
    if sentence is not None:
        raise ImportError(sentence[0].upper() + sentence[1:])


def hidden_package(names: Sequence[str] = PACKAGES) -> str | None:
    """Find a package that another one hides, and say so in a sentence; None where all of these are ours."""
    for name in names:
        spec = find_spec(name)
        if spec is None:
            return f"the package {name} is not installed; install dpilot again, into an environment of its own."
        places = list(spec.submodule_search_locations or ())
        source = Path(spec.origin) if spec.origin else Path(places[0], "__init__.py") if places else None
        if source is None or not _is_ours(source, name):
            return (
                f"another package hides DPilot's {name}: {source}; install DPilot into an environment of its own and "
                "keep folders of that name off Python's path (PYTHONPATH, the folder of the script)."
            )
    return None


def _is_ours(source: Path, name: str) -> bool:
    """Return True for a front door of ours: an installation over it leaves its place, not its text."""
    return source.resolve().parent == _HERE / name and source.is_file() and _FRONT_DOOR in source.read_text("utf-8")


def main() -> int:
    """Run the command `dpilot`, unless one of its packages is hidden: that gets one sentence and exit status 2.

    An interruption while it is being loaded gets one sentence and exit status 130.
    """
    try:
        sentence = hidden_package()
        if sentence is not None:
            print(f"dpilot: {sentence}", file=sys.stderr)
            return 2
        status: int = import_module("experiments.cli").main()  # by name, as the table of entry points does
    except KeyboardInterrupt:  # the command tells the others itself
        print("dpilot: interrupted; nothing is kept yet, so give the same command again", file=sys.stderr)
        return 128 + signal.SIGINT
    return status
