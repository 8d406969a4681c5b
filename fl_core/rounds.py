"""What a controller decides for a round, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_core.errors import InputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

CLIP_RANGE = (1e-9, 1e9)
"""Clip norms allowed. Norms are float32: squares of coordinates below 1e-19 vanish, so that a C of that size would be
passed unnoticed; those above 1e19 overflow."""
LEAST_SHARE = 1e-9
"""The least share of the remaining budget that a round may spend: less would need noise beyond float32."""


@dataclass(frozen=True)
class Figure:
    """A line of the catalogue of reported figures.

    Attributes:
        signal_class: `public` (a function of what is released or planned), `accounted` (released and charged) or `raw`
            (exact private telemetry).
        summary: what it is.
    """

    signal_class: str
    summary: str


FIGURES: dict[str, Figure] = {
    "clip_norm": Figure("public", "clip norm C applied this round"),
    "server_learning_rate": Figure("public", "factor on the mean update"),
    "noise_multiplier": Figure("public", "noise std of the update over its sensitivity"),
    "epsilon_spent": Figure("public", "epsilon certified for everything released so far"),
    "epsilon_left": Figure("public", "target epsilon less the spent one"),
    "budget_left": Figure("public", "share of the budget left, in the filter's own unit"),
    "server_norm": Figure("public", "norm of the server's model"),
    "release_norm_ratio": Figure("public", "norm of the released sum over the expected norm of its noise"),
    "release_alignment": Figure("public", "cosine between this and the previous released sum"),
    "unclipped_share_noised": Figure("accounted", "noised share of clients within the clip norm (quantile bit)"),
    "clipped_share": Figure("raw", "exact share of the cohort that was clipped"),
    "update_norm": Figure("raw", "mean norm of the updates before the clip"),
    "signal_to_noise": Figure("raw", "norm of the clipped sum over the expected norm of its noise"),
    "train_loss": Figure("raw", "mean local training loss"),
    "participants": Figure("raw", "clients in the cohort"),
    "rejected_updates": Figure("raw", "updates that were not finite and contributed zero"),
    "global_accuracy": Figure("raw", "accuracy of the server's model on the pooled test set"),
    "global_loss": Figure("raw", "cross-entropy of the server's model on the pooled test set"),
    "personal_accuracy": Figure("raw", "accuracy of the clients' models on their own hold-outs, mean over clients"),
    "personal_accuracy_spread": Figure("raw", "its standard deviation over clients"),
    "personal_loss": Figure("raw", "cross-entropy of the clients' models on their own hold-outs, mean over clients"),
    "personal_loss_spread": Figure("raw", "its standard deviation over clients"),
    "trimmed_accuracy": Figure("raw", "personal accuracy, mean of the clients between the 10th and 80th percentile"),
    "trimmed_loss": Figure("raw", "personal loss, mean of the clients between the 10th and 80th percentile"),
}


@dataclass(frozen=True)
class RoundPlan:
    """Everything a controller may decide for one round of a batch.

    Attributes:
        clip_norm: C of each run `[runs]`, in `CLIP_RANGE`; ignored by methods that do not clip.
        server_learning_rate: factor on the mean update `[runs]`.
        budget_share: share of each run's remaining budget to spend `[runs]`, in [`LEAST_SHARE`, 1]; None spends
            uniformly.
    """

    clip_norm: FloatArray
    server_learning_rate: FloatArray
    budget_share: FloatArray | None = None

    @classmethod
    def constant(cls, runs: int, clip_norm: float = 1.0, server_learning_rate: float = 1.0) -> RoundPlan:
        """The same decisions for every run."""
        return cls(np.full(runs, clip_norm), np.full(runs, server_learning_rate))

    def check(self, runs: int) -> None:
        """Refuse a plan that does not fit.

        Raises:
            InputError: a value is out of range, or there is not one per run.
        """
        _check_entries("clip_norm", self.clip_norm, runs, *CLIP_RANGE)
        _check_entries("server_learning_rate", self.server_learning_rate, runs, 0, float(np.finfo(np.float32).max))
        if self.budget_share is not None:
            _check_entries("budget_share", self.budget_share, runs, LEAST_SHARE, 1)


def _check_entries(field: str, values: FloatArray, runs: int, low: float, high: float) -> None:
    """Refuse anything but one number per run in [low, high]; a low end of 0 is excluded."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise InputError(f"{field} is {values!r}, but it must be an array of numbers.")
    if values.shape != (runs,):
        raise InputError(f"{field} has shape {values.shape}, but it needs one entry for each of {runs} runs.")
    wrong = ~((values >= low) & (values <= high) & (values > 0))
    if wrong.any():
        allowed = f"in [{low:g}, {high:g}]" if low else f"above 0 and at most {high:g}"
        raise InputError(f"{field} is {values[wrong][0]}, but it must be {allowed}.")


@dataclass(frozen=True)
class RoundReport:
    """What came of a round.

    Attributes:
        figures: per run `[runs]`, named as in `FIGURES`, where the class of each is declared; NaN for runs that did not
            take part.
        ran: runs that took part in this round `[runs]`.
        refused: runs whose ledger refused the round, before any data was touched `[runs]`.
    """

    figures: Mapping[str, FloatArray]
    ran: BoolArray
    refused: BoolArray

    def signal_class(self, name: str) -> str:
        """`public`, `accounted` or `raw`."""
        return FIGURES[name].signal_class
