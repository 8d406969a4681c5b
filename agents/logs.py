"""TensorBoard scalars and the progress bar of a training."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import HParam, KVWriter, Logger, TensorBoardOutputFormat
from tqdm import tqdm
from typing_extensions import override

from agents.baselines import subtract_means
from agents.events import named_failures, open_events
from agents.loggers import Tracker, open_trackers


class _Events(TensorBoardOutputFormat):
    """Event file of stable-baselines3 that hides steps written after the last checkpoint of an interrupted training."""

    def __init__(self, folder: Path, resumed_at: int | None):
        self._folder = folder
        self.writer = open_events(folder, resumed_at)
        self._is_closed = False

    @override
    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        with named_failures(self._folder):
            super().write(key_values, key_excluded, step)

    @override
    def close(self) -> None:
        with named_failures(self._folder):
            super().close()


class _Tracked(KVWriter):
    """Sends an experiment tracker what stable-baselines3's logger dumps."""

    def __init__(self, tracker: Tracker):
        self._tracker = tracker

    @override
    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        shown = {name: one for name, one in key_values.items() if "tensorboard" not in (key_excluded.get(name) or ())}
        for value in shown.values():
            if isinstance(value, HParam):
                self._tracker.parameters(value.hparam_dict)
        numbers = {name: float(value) for name, value in shown.items() if isinstance(value, Real)}
        if numbers:
            self._tracker.scalars(numbers, step)

    @override
    def close(self) -> None:
        self._tracker.close()


def open_logger(folder: Path, resumed_at: int | None) -> Logger:
    """Open a logger of stable-baselines3 that writes to TensorBoard, and to the trackers that `logging_to` names.

    Args:
        folder: of the training; TensorBoard shows its path below `--logdir` as the run's name.
        resumed_at: decisions at which a training goes on; None for a new one.

    Raises:
        FileError: the folder cannot be written.
    """
    return Logger(str(folder), [_Events(folder, resumed_at), *map(_Tracked, open_trackers(folder))])


VALIDATION, BEST = "validation/accuracy", "validation/best accuracy so far"
SHOWN = {
    "episode_reward": "episodes/reward, mean of the update",
    "actions_outside": "episodes/share of actions outside their range",
    "validation_accuracy": VALIDATION,
    "validation_diverged": "validation/diverged runs",
    "best_accuracy": BEST,
    "training_rounds": "cost/federated rounds of training",
    "validation_rounds": "cost/federated rounds of validation",
    "reference_rounds": "cost/federated rounds of reference runs",
}
"""Entry of the history -> tag; TensorBoard groups charts by the part before the slash."""


def log_entry(logger: Logger, entry: Mapping[str, Any]) -> None:
    """Write an entry of the history, with the scalars that the learner has recorded since the last one."""
    for name, tag in SHOWN.items():
        if entry.get(name) is not None:
            logger.record(tag, float(entry[name]))
    logger.dump(int(entry["decisions"]))


def log_parameters(logger: Logger, parameters: Mapping[str, Any]) -> None:
    """Fill TensorBoard's HParams page; its metrics are the scalars that follow."""
    shown = {name: value if isinstance(value, (str, int, float)) else str(value) for name, value in parameters.items()}
    logger.record("parameters", HParam(shown, {VALIDATION: 0.0, BEST: 0.0}), exclude=("stdout", "log"))
    logger.dump(0)


class Bar:
    """Progress bar that counts federated rounds and shows the time left; silent unless shown."""

    def __init__(self, shown: bool, total: int, title: str):
        self._bar = tqdm(
            total=total,
            desc=title,
            unit="round",
            disable=not shown,
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.5,
        )

    def advance(self, rounds: int) -> None:
        """Count rounds that are done."""
        self._bar.update(rounds)

    def note(self, text: str) -> None:
        """Show a text behind the bar."""
        self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """End the bar; it stays on the terminal."""
        self._bar.close()


class EpisodeRecorder(BaseCallback):
    """Records the episodes that a learner steps through.

    Attributes:
        rounds: federated rounds that they took.
        begun: how many there were, those included that the recording ended amid.
        rewards: of the episodes that ended, per row.
        coordinates, outside: of the actions that the policy chose, and those of them outside [-1, 1]: the learner may
            clip actions before the environments see them.
    """

    def __init__(self, bar: Bar, instance_baseline: bool = False):
        """Record for a bar.

        Args:
            bar: told of the rounds.
            instance_baseline: whether the rewards of a rollout are taken relative to those on the same instance.
        """
        super().__init__()
        self._bar, self._instance_baseline = bar, instance_baseline
        self._instances: Sequence[int] = ()
        self._at: list[int] = []
        self.rounds = self.begun = self.coordinates = self.outside = 0
        self.rewards: list[list[float]] = []

    def start(self, instances: Sequence[int]) -> None:
        """Begin a new recording with no episode begun in any row; `instances[row]` is what a row plays."""
        rows, self._instances = len(instances), instances
        self._at, self.rounds, self.begun, self.coordinates, self.outside = [0] * rows, 0, 0, 0, 0
        self.rewards = [[] for _ in range(rows)]

    @property
    def mean_reward(self) -> float:
        """Mean reward of the episodes that ended."""
        return float(np.mean([reward for own in self.rewards for reward in own]))

    @property
    def share_outside(self) -> float:
        """Share of the actions' coordinates outside [-1, 1]."""
        return self.outside / max(1, self.coordinates)

    def _on_step(self) -> bool:
        before, actions = self.rounds, np.asarray(self.locals["actions"])
        self.coordinates += actions.size
        self.outside += int((np.abs(actions) > 1).sum())
        for row, (info, done) in enumerate(zip(self.locals["infos"], self.locals["dones"], strict=True)):
            self.begun += self._at[row] == 0
            self.rounds += info["round"] - self._at[row]
            self._at[row] = 0 if done else info["round"]
            if done:
                self.rewards[row].append(float(info["episode"]["r"]))
        self._bar.advance(self.rounds - before)
        return True

    def _on_rollout_end(self) -> None:
        if self._instance_baseline:
            buffer, found = self.locals["rollout_buffer"], self.locals
            subtract_means(buffer, self._instances, found["values"], found["dones"])
