"""Experiment trackers that scalars are sent to beside TensorBoard."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from fl_core.base.errors import InputError, require_name

Parameters = Mapping[str, str | float | int | bool | None]
PROJECT = "dpilot"


class Tracker(ABC):
    """A run of an experiment tracker, which takes scalars by step, and the parameters once."""

    @abstractmethod
    def parameters(self, values: Parameters) -> None:
        """Record the settings of the run."""

    @abstractmethod
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record values by their TensorBoard tags at a step (a communication round, or a decision of a training)."""

    @abstractmethod
    def close(self) -> None:
        """End the run."""


class WandbTracker(Tracker):
    """A run of Weights & Biases, kept in the run's folder; WANDB_MODE=online sends it as it goes."""

    def __init__(self, folder: Path):
        wandb = _load("wandb")
        self._run = wandb.init(
            project=PROJECT,
            name=folder.name,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )

    @override
    def parameters(self, values: Parameters) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    @override
    def close(self) -> None:
        self._run.finish()


class MlflowTracker(Tracker):
    """A run of MLflow, in the store that MLFLOW_TRACKING_URI names, or in a database beside the run's folder."""

    def __init__(self, folder: Path):
        mlflow = _load("mlflow")
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent.absolute()}/mlflow.db"
        self._client = mlflow.MlflowClient(store)
        known = self._client.get_experiment_by_name(PROJECT)
        experiment = known.experiment_id if known else self._client.create_experiment(PROJECT)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id

    @override
    def parameters(self, values: Parameters) -> None:
        for name, value in values.items():
            self._client.log_param(self._run, _plain(name), value)

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, _plain(name), value, step=step)

    @override
    def close(self) -> None:
        self._client.set_terminated(self._run)


def _plain(name: str) -> str:
    """Drop the letters that MLflow does not allow in names."""
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "-" for letter in name)


def _load(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        extra = next(name for name, one in LOGGERS.items() if one.package == package)
        raise InputError(f"loggers: {extra} needs the package {package}: pip install 'dpilot[{extra}]'.") from error


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue.

    Attributes:
        summary: where it keeps what it is sent.
        package: that must be installed.
        open: starts a run for a folder.
    """

    summary: str
    package: str
    open: Callable[[Path], Tracker]


LOGGERS = {
    "wandb": Entry(
        "Weights & Biases, offline in the run's folder; WANDB_MODE=online sends it as it goes", "wandb", WandbTracker
    ),
    "mlflow": Entry(
        "MLflow, in mlflow.db beside the run's folder, or where MLFLOW_TRACKING_URI says", "mlflow", MlflowTracker
    ),
}

_NAMES: ContextVar[tuple[str, ...]] = ContextVar("loggers", default=())


@contextmanager
def logging_to(*names: str) -> Iterator[None]:
    """Send what is written to TensorBoard inside the block to these trackers as well.

    Raises:
        InputError: a name is unknown, or its package is not installed.
    """
    for name in names:
        require_name("loggers: logger", name, LOGGERS)
        _load(LOGGERS[name].package)
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


def open_trackers(folder: Path) -> Sequence[Tracker]:
    """Start a run for a folder in each of the trackers that `logging_to` names."""
    return [LOGGERS[name].open(folder) for name in _NAMES.get()]
