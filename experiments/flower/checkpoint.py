"""The server's model and state of the method on disk, whole or as they were before."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from agents.weights import read_tensors, write_tensors
from fl_core.base.files import write_json
from fl_core.base.sealed import read_sealed, sealed, understood
from fl_core.run.state import RunState

FORMAT = 1
RECORD = "model.json"


def save_state(folder: Path, state: RunState, rounds: int) -> None:
    """Write the state after a number of rounds, and drop the one before.

    Raises:
        InputError: it cannot be written; the state before is kept then.
    """
    name = f"model-{rounds:05d}.safetensors"
    checksum = write_tensors(folder / name, state.tensors())
    write_json(folder / RECORD, sealed({"file": name, "sha256": checksum}, FORMAT))
    for old in folder.glob("model-*.safetensors"):
        if old.name != name:
            with contextlib.suppress(OSError):
                old.unlink()


def load_state(folder: Path, like: RunState) -> RunState:
    """Read the state of a run.

    Raises:
        InputError: it is missing, was changed since it was written, or is of another model.
    """
    path = folder / RECORD
    found = read_sealed(path, FORMAT)
    with understood(f"The file '{path}' is not one that a run wrote"):
        tensors = read_tensors(folder / str(found["file"]), str(found["sha256"]))
        return like.with_tensors(tensors, np.zeros_like(like.rounds))
