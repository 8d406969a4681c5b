"""Metrics of a run as TensorBoard scalars under readable names, and its parameters for TensorBoard's HParams page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch.utils.tensorboard.summary import hparams

from agents.events import named_failures, open_events
from agents.loggers import open_trackers
from envs import EnvCore
from fl_core.privacy.telemetry import PER_LAYER, TELEMETRY

TAGS = {
    "global_accuracy": "accuracy/global model",
    "personal_accuracy": "accuracy/personal models, mean over clients",
    "personal_accuracy_error": "accuracy/personal models, standard error of a sample of clients",
    "personal_accuracy_spread": "accuracy/personal models, spread over clients",
    "global_loss": "loss/global model",
    "personal_loss": "loss/personal models, mean over clients",
    "personal_loss_spread": "loss/personal models, spread over clients",
    "clip_norm": "control/clip norm",
    "server_learning_rate": "control/server learning rate",
    "actions_outside": "control/share of the action outside its range",
    "noise_multiplier": "privacy/noise multiplier",
    "epsilon_spent": "privacy/epsilon spent",
    "epsilon_left": "privacy/epsilon left",
    "clipped_share": "clipping/share of clipped clients",
    "signal_to_noise": "update/signal-to-noise ratio",
    "update_norm": "update/mean norm before the clip",
    "server_norm": "update/norm of the global model",
    "release_norm": "update/norm of the released mean",
    "release_noise": "update/expected norm of its noise",
    "release_layer_norm": "update/norm of the released mean, layer",
    "release_norm_ratio": "update/released norm over noise norm",
    "release_alignment": "update/cosine of successive releases",
    "budget_left": "privacy/share of the budget left",
    "train_loss": "loss/local training",
    "participants": "clients/in the cohort",
    "rejected_updates": "clients/updates that were not finite",
    "trimmed_accuracy": "accuracy/personal models, trimmed mean",
    "trimmed_loss": "loss/personal models, trimmed mean",
    "epsilon_of_updates": "privacy/epsilon of the updates' noise, as published",
    "risk_noised": "telemetry/risk noised",
    "uplink_bytes": "clients/bytes uploaded, mean",
    "personal_share": "clients/share of the coordinates kept personal, mean",
    **{one.figure: f"telemetry/{one.figure.replace('_', ' ')}" for one in TELEMETRY.values()},
}
"""Metric of a round -> tag, whose part before the slash groups the charts on TensorBoard's page."""


BASIS = "privacy/epsilon holds for"
"""Tag of the text that says what ε rests on."""


def tag_of(metric: str) -> str:
    """Name the tag of a metric, or of one layer's part of it; unknown ones go below "other/"."""
    name, dot, layer = metric.partition(PER_LAYER)
    return f"{TAGS.get(name, f'other/{name}')}{dot and ' '}{layer}"


SAMPLE_ERROR = "personal_accuracy_error"
"""Metric that is 0 where no client is left out of the test: its chart would show nothing else."""
HParam = str | float | int | bool


def hyperparameters(
    *,
    task: str,
    method: str,
    controller: str,
    signals: str,
    epsilon: float | str,
    rounds: int,
    clients: int,
    sampling_rate: float,
    population: str,
    trained_on: str,
    seed: int | str,
) -> dict[str, HParam]:
    """List the parameters of a run, or of a controller's runs, for the HParams page.

    All runs have the same columns, or the page drops some.

    Args:
        task, method, controller, signals, rounds, clients, sampling_rate, population: as set.
        epsilon: the target; a text where several runs differ in it.
        trained_on: population that trained or tuned the controller; "" for none.
        seed: of the run; a text for several runs.
    """
    return {
        "task": task,
        "method": method,
        "controller": controller,
        "signals": signals,
        "epsilon": epsilon,
        "rounds": rounds,
        "clients": clients,
        "sampling rate": sampling_rate,
        "population": population,
        "trained on": trained_on or "nothing",
        "seed": seed,
    }


class RoundWriter:
    """Writes one run's event file; use it as a context manager, so that the tail is on disk whatever happens.

    Args:
        folder: the run's folder; TensorBoard shows its path below `--logdir` as the run's name.
        resumed_at: first round to be written by a run that goes on after an interruption; TensorBoard then hides what
            the interrupted run wrote from this round on.

    Raises:
        FileError: the folder cannot be written, here or in any method.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        self._folder = folder
        self._writer = open_events(folder, resumed_at)
        self._trackers = open_trackers(folder)
        self._last_round = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush and close the event file; its last entries are lost otherwise."""
        try:
            with named_failures(self._folder):
                self._writer.flush()
                self._writer.close()
        finally:
            for tracker in self._trackers:
                tracker.close()

    def round(self, index: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of communication round `index`; names as in `TAGS`, others go below "other/".

        A value that is not finite has no place on a chart and is left out, as is the error of a sample of clients where
        all are tested.
        """
        self._last_round = index
        shown = {name: value for name, value in metrics.items() if value or name != SAMPLE_ERROR}
        self._scalars({tag_of(name): value for name, value in shown.items()}, index)

    def basis(self, text: str) -> None:
        """Write on the Text page what the charts' ε rests on."""
        with named_failures(self._folder):
            self._writer.add_text(BASIS, text)

    def average(self, text: str) -> None:
        """Write on the Text page which average of several runs the charts show."""
        self._writer.add_text("charts show", text)

    def hparams(self, parameters: Mapping[str, HParam], metrics: Mapping[str, float]) -> None:
        """Fill the HParams page for this run; call it once, when the run has ended.

        TensorBoard takes the list of columns from one run and shows it for all: give every run the same names.

        Args:
            parameters: the run's settings; numbers that are not finite and truth values appear as words.
            metrics: the run's results; values that are not finite are left out.
        """
        finite = {f"final/{name.replace('_', ' ')}": value for name, value in metrics.items() if math.isfinite(value)}
        finite["final/rounds"] = self._last_round
        shown = {name: _shown(value) for name, value in parameters.items()}
        # `SummaryWriter.add_hparams` would open a second run named after the time; the same summaries go into this one.
        # A metric shows only where a scalar of its tag exists, so each is written as one below "final/"; the number of
        # rounds is always among them, so that a diverged run is listed too.
        events: Any = self._writer.file_writer
        with named_failures(self._folder):
            for summary in hparams(shown, finite):
                events.add_summary(summary)
        for tracker in self._trackers:
            tracker.parameters(shown)
        self._scalars(finite, self._last_round)

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        finite = {tag: float(value) for tag, value in values.items() if math.isfinite(value)}
        with named_failures(self._folder):
            for tag, value in finite.items():
                self._writer.add_scalar(tag, value, step)
        for tracker in self._trackers:
            tracker.scalars(finite, step)


def _shown(value: HParam) -> str | float:
    """Convert a parameter to what the page can show: torch writes True as 1, and the page reads no infinite number."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and math.isfinite(value):
        return value
    return str(value)


def run_parameters(core: EnvCore, controller: str, seed: int, trained_on: str) -> dict[str, HParam]:
    """List the parameters of a run for the HParams page."""
    config = core.federation.config
    return hyperparameters(
        task=core.task.name,
        method=config.method,
        controller=controller,
        signals=core.spec.signals,
        epsilon=config.epsilon,
        rounds=config.rounds,
        clients=config.clients,
        sampling_rate=config.sampling_rate,
        population=config.population,
        trained_on=trained_on,
        seed=seed,
    )


def final_metrics(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Select the final metrics of a run for the HParams page from those of its rounds."""
    last = rounds[-1] if rounds else {}
    names = ("global_accuracy", "personal_accuracy", "global_loss", "personal_loss", "epsilon_spent")
    return {name: last[name] for name in names if name in last}
