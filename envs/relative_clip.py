"""Clip norms relative to what is public: the last one, the scale of what has been released, or a free calibration.

A policy that sets C itself has learned the scale of one problem's updates. One that sets a factor has not, so it can be
carried to problems whose updates are larger or smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from envs.tasks import Task
from fl_core.base.libraries import numpy as np
from fl_core.recipes.parts import KnobRange
from fl_core.run.plan import FloatArray, RoundReport

CLIP = "clip_norm"
CALIBRATED = "clip_calibrated"
MEDIAN = "clip_median"
AGREEMENT = 0.25
"""Norm of the mean clipped update over C that is assumed before anything is released: at scale 1 the clip norm then
starts at the task's default."""
DRIFT = 0.05
"""Variance, relative to its square, that the power of the updates is expected to gain from round to round."""
LARGEST_STEP = 4.0
"""The most that one release moves the estimated power, up or down: twofold in norm."""
BEYOND = 100.0
"""Factor by which a clip norm that follows the scale may exceed the task's range on either side: a scale that is not
known beforehand cannot be bounded tightly."""


class ClipReference:
    """Public reference of relative clip norms: each run's last clip norm and an estimate of its updates' scale.

    The scale is that of the mean clipped update beyond its noise. Round s releases the mean update with norm R and
    noise of expected norm E over d coordinates, so that p = R² − E² is an unbiased estimate of the power P (the squared
    norm without noise), with variance v = 2E⁴/d + 4PE²/d. A scalar Kalman filter follows it:

        g = V/(V + v),  P ← P + g·(p − P) within [P/4, 4P],  V ← (1 − g)·V + DRIFT·P²,

    from P = (AGREEMENT·C₀)², V = P², with C₀ the task's default clip norm. The scale is u = √P/AGREEMENT, kept within
    the clip norms that it may lead to. Where noise hides the updates, g is small and u stays; with many clients or much
    budget it follows within a few rounds. All that enters is released or planned, so u costs no privacy.

    Attributes:
        last: C of the last decision `[runs]`; the task's default before the first.
        median: estimated median norm of the updates `[runs]`, see `envs.norm_estimate`; 1 where nothing refers to it.
        calibrated: length of a client's update on random data `[runs]`, see `fl_core.run.calibration`; 1 where
            nothing refers to it.
    """

    def __init__(self, task: Task, runs: int):
        """Start at the task's default clip norm in every run."""
        self._task = task
        self._sizes = np.ones(runs)
        self.last = np.full(runs, task.clip_norm)
        self._power = np.zeros(runs)
        self._variance = np.zeros(runs)
        self.calibrated = np.ones(runs)
        self.median = np.ones(runs)
        self.reset(range(runs), [1] * runs)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest clip norm of the task."""
        return self._task.clip_range

    @property
    def reach(self) -> tuple[float, float]:
        """Lowest and highest clip norm that the scale leads to."""
        low, high = self.range
        return low / BEYOND, high * BEYOND

    @property
    def scale(self) -> FloatArray:
        """Estimated scale u of the updates `[runs]`."""
        return np.asarray(np.sqrt(self._power) / AGREEMENT)

    def reset(self, rows: Sequence[int], sizes: Sequence[int], calibrated: FloatArray | None = None) -> None:
        """Start some runs anew, whose models have `sizes` parameters; `calibrated` norms are of all runs `[runs]`."""
        rows = list(rows)
        self._sizes[rows] = sizes
        self.last[rows] = self._task.clip_norm
        self._power[rows] = (AGREEMENT * self._task.clip_norm) ** 2
        self._variance[rows] = self._power[rows] ** 2
        if calibrated is not None:
            self.calibrated[rows] = calibrated[rows]

    def resolve(self, values: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Convert the relative ones among the values of knobs, by name, to absolute ones."""
        absolute = {name: value for name, value in values.items() if name not in RELATIVE_KNOBS}
        for name, knob in RELATIVE_KNOBS.items():
            if name in values:
                absolute[knob.sets] = knob.resolve(self, values[name])
        return absolute

    def applied(self, clip_norm: FloatArray, active: np.ndarray) -> None:
        """Store the clip norms `[runs]` of a decision as the last ones of the active runs."""
        self.last[active] = clip_norm[active]

    def observe(self, report: RoundReport) -> None:
        """Update the estimated scale by the release of a round."""
        if "release_noise" not in report.figures:
            return
        released, noise = report.figures["release_norm"], report.figures["release_noise"]
        known = report.ran & np.isfinite(released) & np.isfinite(noise)
        released, noise = np.where(known, released, 0.0), np.where(known, noise, 0.0)
        seen = released**2 - noise**2
        spread = (2 * noise**4 + 4 * self._power * noise**2) / self._sizes
        gain = self._variance / (self._variance + spread)
        power = self._power + gain * (seen - self._power)
        power = np.clip(power, self._power / LARGEST_STEP, self._power * LARGEST_STEP)
        least, most = ((AGREEMENT * clip) ** 2 for clip in self.reach)
        power = np.clip(power, least, most)  # at 0 it would never move again
        variance = (1 - gain) * self._variance + DRIFT * power**2
        self._power = np.where(known, power, self._power)
        self._variance = np.where(known, variance, self._variance)

    def state_dict(self) -> dict[str, FloatArray]:
        """Return its arrays by name, all `[runs]`."""
        return {
            "last": self.last,
            "power": self._power,
            "variance": self._variance,
            "sizes": self._sizes,
            "calibrated": self.calibrated,
            "median": self.median,
        }

    def load_state_dict(self, state: Mapping[str, FloatArray]) -> None:
        """Continue where `state_dict` was taken."""
        self.last, self._power, self._variance, self._sizes, self.calibrated, self.median = (
            state[name].copy() for name in ("last", "power", "variance", "sizes", "calibrated", "median")
        )


@dataclass(frozen=True)
class RelativeKnob:
    """A knob of the environment that stands for one of the method's.

    Attributes:
        range: its own name, range and default.
        sets: the method's knob that it sets.
        resolve: that knob's values `[runs]` from its own.
    """

    range: KnobRange
    sets: str
    resolve: Callable[[ClipReference, FloatArray], FloatArray]


def _changed(reference: ClipReference, factor: FloatArray) -> FloatArray:
    return np.clip(reference.last * factor, *reference.range)


def _scaled(reference: ClipReference, factor: FloatArray) -> FloatArray:
    return np.clip(reference.scale * factor, *reference.reach)


def _calibrated(reference: ClipReference, factor: FloatArray) -> FloatArray:
    return np.clip(reference.calibrated * factor, *reference.reach)


def _of_the_median(reference: ClipReference, factor: FloatArray) -> FloatArray:
    return np.clip(reference.median * factor, *reference.reach)


RELATIVE_KNOBS: dict[str, RelativeKnob] = {
    knob.range.name: knob
    for knob in (
        RelativeKnob(
            KnobRange("clip_change", 0.5, 2.0, 1.0, "log", "factor on the last clip norm, within the task's range"),
            CLIP,
            _changed,
        ),
        RelativeKnob(
            KnobRange("clip_scale", 0.1, 10.0, 1.0, "log", "clip norm over the running scale of what is released"),
            CLIP,
            _scaled,
        ),
        RelativeKnob(
            KnobRange(CALIBRATED, 0.05, 20.0, 1.0, "log", "clip norm over the length of an update on random data"),
            CLIP,
            _calibrated,
        ),
        RelativeKnob(
            KnobRange(MEDIAN, 0.05, 20.0, 1.0, "log", "clip norm over the estimated median norm of the updates"),
            CLIP,
            _of_the_median,
        ),
    )
}
"""Adding one is adding an entry."""
