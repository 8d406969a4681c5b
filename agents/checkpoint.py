"""Checkpoints of a training: weights and optimizer state as safetensors, everything else as JSON.

`checkpoint.json` names the file of weights and the lines of `updates.jsonl` that belong to it and is replaced in one
step after both are on disk, so whenever a training is interrupted, the last checkpoint is whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agents.costs import Cost
from agents.update_log import UpdateLog
from agents.weights import Tensors, read_tensors, write_tensors
from fl_core.base.bounds import check_numbers, count
from fl_core.base.errors import require, require_name
from fl_core.base.fields import check_types
from fl_core.base.files import write_json
from fl_core.base.sealed import read_sealed, sealed, understood

FORMAT = 5
CHECKPOINT = "checkpoint.json"
_COUNT = count(0, 2**53)
_BEST, _LEARNER = "best/", "learner/"


@dataclass
class TrainingState:
    """Counters, costs and history of a training so far; all values are JSON-able.

    Attributes:
        update: updates done.
        decisions: decisions taken, over all environments.
        cost: federated rounds taken.
        released: the same, with every run counted as a whole one: one that ends early may have spent all its budget.
        best_score: highest validation accuracy so far.
        best_update: updates that the policy with it had seen; 0 is the untrained policy.
        best_accuracies: its final accuracy on each validation instance.
        reward_statistics: by which rewards are normalised.
        gradient_updates: what the learner counts its updates of the weights by.
        played: instances that the rows played, per update.
        scores: of the curriculum, per instance.
        history: measurements per update, the first of the untrained policy.
        episodes: how many have ended.
        recent: reward and length of the last of them, by which the learner's log tells its averages.
    """

    update: int = 0
    decisions: int = 0
    cost: Cost = field(default_factory=Cost)
    released: Cost = field(default_factory=Cost)
    best_score: float = -1.0
    best_update: int = 0
    best_accuracies: list[float] = field(default_factory=list)
    reward_statistics: dict[str, float] = field(default_factory=dict)
    gradient_updates: int = 0
    played: list[list[int]] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    episodes: int = 0
    recent: list[list[float]] = field(default_factory=list)

    def check(self, where: str) -> None:
        """Refuse counters and measurements of other types, below zero, or that do not fit each other.

        Raises:
            InputError: names `where`.
        """
        check_types(self, where)
        for record in (self, self.cost, self.released):
            check_types(record, where)
            check_numbers(record, {one.name: _COUNT for one in fields(record) if one.type == "int"}, f"{where}: ")
        fits = len(self.history) == self.update + 1 and len(self.played) == self.update >= self.best_update
        require(fits, f"{where} contradicts itself: update is {self.update}, but its history has {len(self.history)}.")
        for entry in self.history:
            require_name(f"{where}: history without the entry", "validation_accuracy", entry)


def save_checkpoint(
    folder: Path,
    about: Mapping[str, Any],
    progress: TrainingState,
    learner: Tensors,
    best: Tensors,
    log: UpdateLog,
) -> None:
    """Write a checkpoint and drop the one before.

    Args:
        folder: the training's folder.
        about: configuration and settings of the training, and the environment it was made in.
        progress: its counters, costs and history.
        learner: weights and optimizer state.
        best: weights of the best policy so far.
        log: lines of the updates that earlier checkpoints have written.

    Raises:
        FileError: it cannot be written; the checkpoint before is kept then.
    """
    name = f"checkpoint-{progress.update:05d}.safetensors"
    tensors = {f"{_LEARNER}{key}": value for key, value in learner.items()}
    tensors |= {f"{_BEST}{key}": value for key, value in best.items()}
    checksum = write_tensors(folder / name, tensors)
    log.append(_rows(progress)[log.lines :])
    state = vars(progress) | {"cost": vars(progress.cost), "released": vars(progress.released)}
    state = {key: value for key, value in state.items() if key not in ("history", "played")}
    record = {"about": dict(about), "progress": state, "updates": log.seal(), "weights": name}
    record["weights_sha256"] = checksum
    write_json(folder / CHECKPOINT, sealed(record, FORMAT))
    for old in folder.glob("checkpoint-*.safetensors"):
        if old.name != name:
            with contextlib.suppress(OSError):
                old.unlink()


def _rows(progress: TrainingState) -> list[dict[str, Any]]:
    """List what grows with every update: its measurements, and the instances played in it, none of the first."""
    played = [None, *progress.played]
    return [{"measured": one, "played": own} for one, own in zip(progress.history, played, strict=True)]


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint as read back; attributes as in `save_checkpoint`."""

    about: dict[str, Any]
    progress: TrainingState
    learner: Tensors
    best: Tensors
    log: UpdateLog


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a training's last checkpoint; no pickle is read.

    Raises:
        InputError: there is none, or it is damaged, changed or of another version.
    """
    path = folder / CHECKPOINT
    require(folder.is_dir(), f"'{folder}' is no folder, so there is no training to continue.")
    require(path.is_file(), f"'{folder}' holds no {CHECKPOINT} to continue from; start the training anew.")
    record = read_sealed(path, FORMAT)
    log = UpdateLog(folder)
    with understood(f"The file '{path}' describes no training; start it anew"):
        rows = log.read(record["updates"])
        state = dict(record["progress"])
        state |= {"history": [row["measured"] for row in rows], "played": [row["played"] for row in rows[1:]]}
        costs = {name: Cost(**state[name]) for name in ("cost", "released")}
        progress = TrainingState(**state | costs)
        progress.check(f"The file '{path}'")
        about, name, checksum = dict(record["about"]), str(record["weights"]), str(record["weights_sha256"])
    tensors = read_tensors(folder / Path(name).name, checksum)
    return Checkpoint(about, progress, _below(tensors, _LEARNER), _below(tensors, _BEST), log)


def _below(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
