"""Action and outcome of a round: the controllers' `RoundPlan`, the `RoundReport`, and the catalogue of its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl_core.base.arguments import check_argument, checked
from fl_core.base.bounds import Bounds
from fl_core.base.errors import InputError, require_name
from fl_core.base.libraries import NDArray
from fl_core.base.libraries import numpy as np
from fl_core.privacy.telemetry import PER_LAYER, TELEMETRY
from fl_core.recipes.parts import KnobRange
from fl_core.run.ranges import RUNS

FloatArray = NDArray["np.float64"]
BoolArray = NDArray["np.bool_"]

CLIP_RANGE = (1e-9, 1e9)
"""Clip norms allowed. Norms are float32: squares of coordinates below 1e-19 vanish, so that a C of that size would be
passed unnoticed; those above 1e19 overflow."""
CLIP_NORM = Bounds(1e-6, 1e6, "updates are neither that short nor that long")
"""Clip norms that a setting may name; a controller may go from there by a factor."""
LEAST_SHARE = 1e-9
"""The least share of the remaining budget that a round may spend: less would need noise beyond float32."""


@dataclass(frozen=True)
class Metric:
    """Entry of the catalogue of reported metrics.

    Attributes:
        signal_class: `public` (a function of what is released or planned), `accounted` (released and charged) or `raw`
            (exact private telemetry).
        summary: meaning, in one line.
        is_norm: True for a length in parameter space, which scales with the configuration's `update_scale`.
    """

    signal_class: str
    summary: str
    is_norm: bool = False


METRICS: dict[str, Metric] = {
    "clip_norm": Metric("public", "clip norm C applied this round", is_norm=True),
    "server_learning_rate": Metric("public", "factor on the mean update"),
    "actions_outside": Metric("public", "share of the action's coordinates outside [-1, 1], where they saturate"),
    "noise_multiplier": Metric("public", "noise std of the update over its sensitivity"),
    "epsilon_spent": Metric("public", "epsilon of all that is released: certified, or claimed where as published"),
    "epsilon_of_updates": Metric(
        "raw", "as published: epsilon that the noise on the updates certifies, for this cohort"
    ),
    "epsilon_left": Metric("public", "target epsilon less the spent one"),
    "budget_left": Metric("public", "share of the budget left, in the filter's own unit"),
    "server_norm": Metric("public", "norm of the server's model", is_norm=True),
    "release_norm": Metric("public", "norm of the released mean update, with its noise", is_norm=True),
    "release_noise": Metric("public", "expected norm of the noise in it", is_norm=True),
    "release_layer_norm": Metric("public", "norm of each layer's part of the released mean update", is_norm=True),
    "release_norm_ratio": Metric("public", "norm of the released sum over the expected norm of its noise"),
    "release_alignment": Metric("public", "cosine between this and the previous released sum"),
    "clipped_share": Metric("raw", "exact share of the cohort that was clipped"),
    "risk_noised": Metric("accounted", "noised mean Jacobian risk of the cohort, that clients compare theirs with"),
    "uplink_bytes": Metric("raw", "bytes that a client of the cohort uploads, mean"),
    "personal_share": Metric("raw", "share of the exchanged coordinates that clients kept personal, mean"),
    "update_norm": Metric("raw", "mean norm of the updates before the clip", is_norm=True),
    "signal_to_noise": Metric("raw", "norm of the clipped sum over the expected norm of its noise"),
    "train_loss": Metric("raw", "mean local training loss"),
    "participants": Metric("raw", "clients in the cohort"),
    "rejected_updates": Metric("raw", "updates that were not finite and contributed zero"),
    "global_accuracy": Metric("raw", "accuracy of the server's model on the pooled test set"),
    "global_loss": Metric("raw", "cross-entropy of the server's model on the pooled test set"),
    "personal_accuracy": Metric("raw", "accuracy of the clients' models on their test samples, mean over clients"),
    "personal_accuracy_error": Metric("raw", "standard error of it, as only some of the clients are tested; 0 if all"),
    "personal_accuracy_spread": Metric("raw", "its standard deviation over clients"),
    "personal_loss": Metric("raw", "cross-entropy of the clients' models on their test samples, mean over clients"),
    "personal_loss_spread": Metric("raw", "its standard deviation over clients"),
    "trimmed_accuracy": Metric("raw", "personal accuracy, mean of the clients between the 10th and 80th percentile"),
    "trimmed_loss": Metric("raw", "personal loss, mean of the clients between the 10th and 80th percentile"),
    **{one.figure: Metric("accounted", one.summary) for one in TELEMETRY.values()},
}


def find_metric(name: str) -> Metric:
    """Return the entry of a metric in `METRICS`; `NAME.LAYER`, one layer's part of it, has the same entry."""
    return METRICS[name.partition(PER_LAYER)[0]]


def in_units(figures: Mapping[str, FloatArray], scales: FloatArray) -> dict[str, FloatArray]:
    """Convert the norms among figures `[runs]` to the units of controllers, `scales` `[runs]` times the model's own."""
    return {name: value * scales if find_metric(name).is_norm else value for name, value in figures.items()}


@dataclass(frozen=True)
class RoundPlan:
    """Everything a controller may decide for one round of a batch.

    Attributes:
        clip_norm: C of each run `[runs]`, in `CLIP_RANGE`; ignored by methods that do not clip.
        server_learning_rate: factor on the mean update `[runs]`.
        budget_share: share of each run's remaining budget to spend `[runs]`, in [`LEAST_SHARE`, 1]; None spends
            uniformly, or as the method does.
        settings: values `[runs]` (`[runs, layers]` where a knob has one per layer) of the method's other knobs by name;
            those left out keep the method's own.
    """

    clip_norm: FloatArray
    server_learning_rate: FloatArray
    budget_share: FloatArray | None = None
    settings: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    @checked
    def constant(cls, runs: int, clip_norm: float = 1.0, server_learning_rate: float = 1.0) -> RoundPlan:
        """Return a plan with the same decisions for every run."""
        RUNS.check("runs", runs)
        return cls(np.full(runs, clip_norm), np.full(runs, server_learning_rate))

    @classmethod
    @checked
    def from_values(cls, runs: int, values: Mapping[str, FloatArray], clip_norm: float = 1.0) -> RoundPlan:
        """Make a plan from knob values `[runs]` by name; knobs that are not among them keep their default."""
        RUNS.check("runs", runs)
        fixed = {"clip_norm": np.full(runs, clip_norm), "server_learning_rate": np.ones(runs)}
        own = {name: value for name, value in values.items() if name in fixed}
        others = {name: value for name, value in values.items() if name not in fixed}
        return cls(**{**fixed, **own}, settings=others)

    @checked
    def check(self, runs: int, knobs: Iterable[KnobRange] = (), layers: int = 1) -> None:
        """Check values and shapes of the plan against the batch and the method's knobs.

        Args:
            runs: number of runs of the batch.
            knobs: ranges of the method's knobs.
            layers: number of layers of the model.

        Raises:
            InputError: a value is out of range, there is not one per run, or the method has no such knob.
        """
        _check_entries("clip_norm", self.clip_norm, (runs,), *CLIP_RANGE)
        _check_entries("server_learning_rate", self.server_learning_rate, (runs,), 0, float(np.finfo(np.float32).max))
        if self.budget_share is not None:
            _check_entries("budget_share", self.budget_share, (runs,), LEAST_SHARE, 1)
        check_argument("settings", self.settings, Mapping[str, Any])
        known = {knob.name: knob for knob in knobs}
        for name, values in self.settings.items():
            require_name("knob", name, known)
            knob = known[name]
            _check_entries(
                name, values, (runs, layers) if knob.per_layer else (runs,), knob.low, knob.high, knob.low == 0
            )


def _check_entries(
    field: str, values: FloatArray, shape: tuple[int, ...], low: float, high: float, zero_allowed: bool = False
) -> None:
    """Raise `InputError` unless all entries are numbers in [low, high]; 0 itself only if it is allowed."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        raise InputError(f"{field} is {values!r}, but it must be an array of numbers.")
    if values.shape != shape:
        entries = f"each of {shape[0]} runs" if len(shape) == 1 else f"each of {shape[0]} runs and {shape[1]} layers"
        raise InputError(f"{field} has shape {values.shape}, but it needs one entry for {entries}.")
    wrong = ~((values >= low) & (values <= high) & ((values > 0) | zero_allowed))
    if wrong.any():
        allowed = f"in [{low:g}, {high:g}]" if low or zero_allowed else f"above 0 and at most {high:g}"
        raise InputError(f"{field} is {values[wrong][0]}, but it must be {allowed}.")


@dataclass(frozen=True)
class RoundReport:
    """Outcome of a round of a batch.

    Attributes:
        figures: metrics `[runs]` by name, as in `METRICS`, which declares the class of each; NaN for runs that did not
            take part.
        ran: runs that took part in this round `[runs]`.
        refused: runs whose ledger refused the round, before any data was touched `[runs]`.
    """

    figures: Mapping[str, FloatArray]
    ran: BoolArray
    refused: BoolArray

    def signal_class(self, name: str) -> str:
        """Return the class of a metric: `public`, `accounted` or `raw`."""
        return find_metric(name).signal_class
