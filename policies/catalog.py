"""The hand-coded controllers by name, and the specs that name them on the command line, as `aqc:0.5:0.2`.

To add a controller, write its class and add it to `CONTROLLERS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fl_core.base.errors import InputError, require, require_name
from fl_core.base.values import read_value
from policies.adaptive_quantile import AdaptiveQuantileClip, ExactQuantileClip
from policies.base import Controller
from policies.budget_schedules import ExponentialBudget, LinearBudget, PrintedBudget, StepBudget, UniformBudget
from policies.constant import ConstantControl, base_knobs, read_assignments
from policies.layer_weights import LogOddsWeights, PaidLogOddsWeights
from policies.parameters import ANCHOR
from policies.personalization_schedules import NoiseScaledPersonalization, ProgressivePersonalization
from policies.random_clip import RandomControl
from policies.schedules import (
    BestFixedClip,
    ClientBudget,
    CosineDecay,
    ExponentialDecay,
    FixedClip,
    LinearDecay,
    NoControl,
    ServerLearningRateDecay,
    StepDecay,
    TailAverage,
)

CONTROLLERS: dict[str, type[Controller]] = {
    controller.name: controller
    for controller in (
        FixedClip,
        BestFixedClip,
        ExponentialDecay,
        LinearDecay,
        CosineDecay,
        StepDecay,
        ServerLearningRateDecay,
        TailAverage,
        AdaptiveQuantileClip,
        ExactQuantileClip,
        LogOddsWeights,
        PaidLogOddsWeights,
        ProgressivePersonalization,
        NoiseScaledPersonalization,
        ClientBudget,
        ConstantControl,
        RandomControl,
        UniformBudget,
        ExponentialBudget,
        PrintedBudget,
        LinearBudget,
        StepBudget,
        NoControl,
    )
}
"""Name -> class, whose attributes give its parameters and the knobs and signals that it needs."""


@dataclass(frozen=True)
class ControllerSpec:
    """A controller as named by a user.

    Attributes:
        name: its catalogue name.
        parameters: the leading parameters that were given.
        assigned: values of knobs by name, for controllers that take these.
        chosen_knobs: comma-separated knobs of its environment, where they were named; empty for the usual ones.
    """

    name: str
    parameters: tuple[float, ...] = ()
    assigned: tuple[tuple[str, float], ...] = ()
    chosen_knobs: str = ""

    def __str__(self) -> str:
        pieces = [self.name, *(f"{value:.12g}" for value in self.parameters)]
        pieces += [",".join(f"{name}={value:.12g}" for name, value in self.assigned)] if self.assigned else []
        return ":".join([*pieces, self.chosen_knobs] if self.chosen_knobs else pieces)

    @property
    def controller(self) -> type[Controller]:
        """Class of the controller."""
        return CONTROLLERS[self.name]

    @property
    def knobs(self) -> str:
        """Comma-separated knobs that its environment must have."""
        own = base_knobs(name for name, _ in self.assigned)
        return self.chosen_knobs or own or self.controller.usual_knobs or self.controller.needed_knobs

    @property
    def signals(self) -> str:
        """Signal set that its environment must show."""
        return self.controller.needed_signals

    @property
    def anchored(self) -> bool:
        """True if a parameter that was not given derives from an anchor clip norm, which a search should find first."""
        return any(one.unit == ANCHOR for one in self.controller.parameters[len(self.parameters) :])

    def named_parameters(self) -> dict[str, float]:
        """Return the given parameters by name."""
        given = {one.name: value for one, value in zip(self.controller.parameters, self.parameters, strict=False)}
        return given | dict(self.assigned)


def parse_controller(spec: str) -> ControllerSpec:
    """Parse a spec such as `fixed:0.5`, `exponential-decay:2:0.5`, `aqc` or `constant:clip_norm=0.5`.

    Raises:
        InputError: the name is unknown, or parameters are too many, too few, no numbers, or out of range.
    """
    name, *texts = spec.strip().split(":")
    require_name("controller", name, CONTROLLERS)
    controller = CONTROLLERS[name]
    if controller.assigns:
        return ControllerSpec(name, assigned=read_assignments(spec, ":".join(texts)))
    expected = () if controller.tuned else controller.parameters
    chosen = texts.pop() if controller.takes_knobs and len(texts) == len(expected) + 1 else ""
    if len(texts) > len(expected):
        takes = "no parameters" if not expected else f"at most {len(expected)}"
        raise InputError(f"controller '{spec}' has {len(texts)} parameters, but {controller.usage()} takes {takes}.")
    values = tuple(
        one.check(name, read_value(f"{one.name} of controller '{spec}'", text, float, finite=True))
        for one, text in zip(expected, texts, strict=False)
    )
    left_out = [one.name for one in expected[len(texts) :] if one.unit == ANCHOR]
    given = [one.name for one in expected[: len(texts)] if one.unit == ANCHOR]
    require(
        not given or not left_out,
        f"controller '{spec}' has {' and '.join(given)} but no {' and no '.join(left_out)}; give all or none.",
    )
    return ControllerSpec(name, values, chosen_knobs=chosen)


def make_controller(spec: str | ControllerSpec, env: Any, anchor: float | None = None) -> Controller:
    """Make the controller of a spec for an environment.

    Args:
        spec: as `parse_controller` reads it.
        env: any face of a DPilot environment that has the spec's knobs and signals.
        anchor: clip norm C* that parameters left out derive from: decays go from 2 C* to C*/2 within the knob's range,
            `server-lr-decay` takes 2 C*, `best-fixed` C*. None takes the task's default; `best-fixed` refuses that.

    Raises:
        InputError: the spec, the anchor or the environment does not fit.
    """
    known = parse_controller(spec) if isinstance(spec, str) else spec
    return known.controller.for_env(env, anchor, **known.named_parameters())
