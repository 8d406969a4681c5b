"""Controls of a batch of runs: the knobs that a controller sets, and the features that it sees, from round to round.

Simulated runs (`EnvCore`) and deployed ones (`ControlLoop`) are steered through it alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.actions import require_finite
from envs.context import CALIBRATED_NORM, COHORT, KNOWN, context_features
from envs.knobs import Knob, make_knobs, plan_values
from envs.listing import Listing
from envs.norm_estimate import MedianNorm
from envs.observer import Observer
from envs.relative_clip import CALIBRATED, MEDIAN, ClipReference
from envs.setting import EnvSpec
from envs.signals import FEATURE_BOUND, MEDIAN_NORM, MEDIAN_SPREAD, SIGNAL_SETS, Feature, make_features
from envs.tasks import Task
from fl_core.models.layout import Layout
from fl_core.privacy.telemetry import parse_telemetry
from fl_core.run.evaluation import EVALUATED
from fl_core.run.plan import BoolArray, FloatArray, RoundPlan, RoundReport


class Controls:
    """Knobs and features of a batch of runs: plans from actions, and observations from what rounds reported.

    Attributes:
        knobs: knob of each action coordinate.
        features: feature of each observation entry.
        needs_evaluation: True if a feature is an accuracy or a loss.
        settings: names of what it must know of a run's settings, see `envs.context.KNOWN`.
    """

    def __init__(self, task: Task, spec: EnvSpec, layout: Layout, defaults: Mapping[str, float], runs: int):
        """Make the knobs and features of a spec.

        Args:
            task: as it runs, accounted signals paid for.
            spec: of knobs and signals.
            layout: of the model.
            defaults: what a run does where nobody sets a knob, by name.
            runs: size of the batch.

        Raises:
            InputError: a knob or signal is unknown, or is not the method's.
        """
        config, layers = task.federation, [span.name for span in layout.layers]
        self._task, self._runs = task, runs
        self.knobs = make_knobs(task, spec.knobs, config.recipe().knobs, layers, defaults)
        bought = parse_telemetry(config.telemetry)
        seen = make_features(spec.signals, self.knobs, layout.classes, bought, layers)
        self.features = Listing((*seen, *context_features(spec.context)))
        self._observer = Observer(runs, self.knobs, self.features)
        self._clips = ClipReference(task, runs)
        shown = {feature.figure for feature in self.features}
        names = {knob.name for knob in self.knobs}
        calibrated = {CALIBRATED_NORM} if names & {CALIBRATED, MEDIAN} else set()
        calibrated |= {COHORT} if MEDIAN in names else set()
        self.settings = tuple(name for name in KNOWN if name in shown | calibrated)
        uses_bit = "accounted" in SIGNAL_SETS[spec.signals]
        self._medians = MedianNorm(config, runs, uses_bit) if MEDIAN in names else None
        self._plan = RoundPlan.constant(runs)
        self.needs_evaluation = self._observer.needs_evaluation
        self._sums: dict[str, FloatArray] = {}
        self._counts = np.zeros(runs)

    @property
    def observation_space(self) -> spaces.Box:
        """Space of one run's observation."""
        return spaces.Box(-FEATURE_BOUND, FEATURE_BOUND, (len(self.features),), np.float32)

    @property
    def action_space(self) -> spaces.Box:
        """Space of one run's action."""
        return spaces.Box(-1.0, 1.0, (len(self.knobs),), np.float32)

    @property
    def observation(self) -> NDArray[np.float32]:
        """Copy of the observations of all runs `[runs, features]`."""
        return self._observer.observation

    def begin(self, rows: Sequence[int], sizes: Sequence[int], known: Mapping[str, FloatArray]) -> None:
        """Forget all that some runs have done.

        Args:
            rows: their places.
            sizes: parameters of the model of each.
            known: what `settings` names, and accuracies and losses before the first round, those that features are
                made of `[runs]`.
        """
        self._clips.reset(rows, sizes, known.get(CALIBRATED_NORM))
        if self._medians is not None:
            self._medians.reset(rows, known[CALIBRATED_NORM], known[COHORT])
            known = {**known, **self._estimates()}
        self._observer.begin(rows, known)

    def calibrated_norm(self, row: int) -> float | None:
        """Return the length of an update on random data, in a run whose clip norms are multiples of it; else None."""
        return float(self._clips.calibrated[row]) if CALIBRATED_NORM in self.settings else None

    def plan(self, coordinates: FloatArray, active: BoolArray) -> RoundPlan:
        """Make the plan of the rounds of a decision, which is noted as the last one of the active runs.

        Args:
            coordinates: actions `[runs, knobs]`; beyond [-1, 1] they saturate. Those of other runs are ignored.
            active: runs that decide `[runs]`.

        Raises:
            InputError: a coordinate of an active run is NaN or infinite; nothing is noted then.
        """
        require_finite(coordinates, active, self.knobs)
        coordinates = np.where(active[:, None], coordinates, 0.0)
        values = [knob.decode(coordinates[:, i]) for i, knob in enumerate(self.knobs)]
        self._observer.note_actions(values, active)
        absolute = self._clips.resolve(plan_values(self.knobs, values))
        plan = RoundPlan.from_values(self._runs, absolute, self._task.clip_norm)
        self._clips.applied(plan.clip_norm, active)
        self._plan = plan
        return plan

    def _estimates(self) -> dict[str, FloatArray]:
        """Tell the clip norms what is known of the updates' median norm; returns it as figures `[runs]`."""
        assert self._medians is not None
        self._clips.median = self._medians.median
        return {MEDIAN_NORM: self._clips.median / self._medians.calibrated, MEDIAN_SPREAD: self._medians.spread}

    def note_round(self, report: RoundReport) -> None:
        """Add a round to what is known of the present decision."""
        self._clips.observe(report)
        if self._medians is not None:
            self._medians.observe(self._plan, report)
        self._counts += report.ran
        for name, value in report.figures.items():
            self._sums[name] = self._sums.get(name, np.zeros(self._runs)) + np.where(report.ran, value, 0.0)

    def end_decision(self) -> None:
        """Note the mean figures of the rounds since the last decision, but for accuracies and losses."""
        counts = np.maximum(self._counts, 1)
        means = {name: value / counts for name, value in self._sums.items() if name not in EVALUATED}
        if self._medians is not None:
            means |= self._estimates()
        self.note_figures(means, self._counts > 0)
        self._sums, self._counts = {}, np.zeros(self._runs)

    def note_figures(self, figures: Mapping[str, FloatArray], rows: BoolArray) -> None:
        """Note those of the figures `[runs]` that features are made of, for some runs."""
        self._observer.note_figures(figures, rows)

    def observe(self, rows: Sequence[int], done: FloatArray, noise_multipliers: FloatArray) -> None:
        """Make the observations of some runs anew.

        Args:
            rows: their places.
            done: rounds done by each run over its T `[runs]`.
            noise_multipliers: those of the runs' uniform schedules `[runs]`.
        """
        self._observer.observe(rows, done, noise_multipliers)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return its arrays by name, `[runs, ...]` each; `sums.` and `counts` only midway through a decision."""
        arrays = self._observer.state_dict() | {f"clips.{name}": one for name, one in self._clips.state_dict().items()}
        if self._medians is not None:
            arrays |= {f"medians.{name}": one for name, one in self._medians.state_dict().items()}
        if self._counts.any():
            arrays |= {f"sums.{name}": value for name, value in self._sums.items()} | {"counts": self._counts}
        return arrays

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue where `state_dict` was taken; other arrays are ignored."""
        self._observer.load_state_dict(arrays)
        self._clips.load_state_dict(with_prefix(arrays, "clips."))
        if self._medians is not None:
            self._medians.load_state_dict(with_prefix(arrays, "medians."))
        self._sums, self._counts = with_prefix(arrays, "sums."), arrays.get("counts", np.zeros(self._runs))


def with_prefix(arrays: Mapping[str, FloatArray], prefix: str) -> dict[str, FloatArray]:
    """Select the arrays whose names begin with a prefix, by the rest of the name."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


class Steered:
    """What a controller looks at in whatever is steered through `controls`: knobs, features and their spaces."""

    controls: Controls

    @property
    def knobs(self) -> Listing[Knob]:
        """Knob of each action coordinate."""
        return self.controls.knobs

    @property
    def features(self) -> Listing[Feature]:
        """Feature of each observation entry."""
        return self.controls.features

    @property
    def observation_space(self) -> spaces.Box:
        """Space of one run's observation."""
        return self.controls.observation_space

    @property
    def action_space(self) -> spaces.Box:
        """Space of one run's action."""
        return self.controls.action_space
