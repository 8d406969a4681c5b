"""The hand-coded controllers by name, and the specs that name them on the command line, as `aqc:0.5:0.2`.

To add a controller for good, write its class and add a line here; a user's own is named as `mine.py:MyClip:0.5`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.signals import SIGNAL_SETS
from fl_core.base.arguments import checked
from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.sources import told
from fl_core.base.values import read_value
from policies.adaptive_quantile import AdaptiveQuantileClip, ExactQuantileClip
from policies.base import Controller
from policies.budget_schedules import ExponentialBudget, LinearBudget, PrintedBudget, StepBudget, UniformBudget
from policies.constant import ConstantControl, base_knobs, read_assignments
from policies.layer_weights import LogOddsWeights, PaidLogOddsWeights
from policies.parameters import ANCHOR, MULTIPLE, Parameter
from policies.personalization_schedules import NoiseScaledPersonalization, ProgressivePersonalization
from policies.probe import Probe
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
from policies.view import CLIP_NORM, MULTIPLES, View

_BUILT_IN: dict[str, type[Controller]] = {
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
        Probe,
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


def controller_class(given: Any, who: str) -> type[Controller]:
    """Check that what a user gives is a class of controllers that can be made and named.

    Raises:
        InputError: it is none, or lacks an attribute or `decide`.
    """
    if not inspect.isclass(given) or not issubclass(given, Controller):
        kind = f"the class {given.__name__}" if inspect.isclass(given) else f"of type {type(given).__name__}"
        raise InputError(f"{who} is {kind}, but a controller is a class made from policies.Controller.")
    for name in ("name", "summary", "label_format"):
        text = isinstance(getattr(given, name, None), str) and bool(getattr(given, name))
        require(text, f"{who} has no text as its {name}; give name, summary and label_format as class attributes.")
    missing = ", ".join(sorted(given.__abstractmethods__))
    require(not missing, f"{who} does not define {missing}.")
    known = isinstance(given.parameters, tuple) and all(isinstance(one, Parameter) for one in given.parameters)
    require(known, f"{who} has parameters that are no tuple of policies.Parameter.")
    require_name(f"{who}: needed_signals", given.needed_signals, SIGNAL_SETS)
    require(isinstance(given.needed_knobs, str), f"{who} has needed_knobs that are no text: names between commas.")
    words = isinstance(given.needed_features, tuple) and all(isinstance(one, str) for one in given.needed_features)
    require(words, f"{who} has needed_features that are no tuple of names.")
    try:
        _ = given.label_format.format(**{one.name: one.default for one in given.parameters})
    except (KeyError, IndexError, ValueError) as error:
        raise InputError(f"{who} has a label_format that does not fit its parameters ({told(error)}).") from error
    return given


CONTROLLERS = Catalogue("controller", _BUILT_IN, controller_class)
"""Name -> class, whose attributes give its parameters and the knobs and signals that it needs."""


def register_controller(controller: type[Controller]) -> str:
    """Enter a controller under its name, for `--controller NAME` and `make_controller("NAME", env)`.

    Returns:
        The name.

    Raises:
        InputError: the name cannot be one or is built in, or it is no class of controllers.
    """
    return CONTROLLERS.register(controller_class(controller, "the controller that was given").name, controller)


@dataclass(frozen=True)
class ControllerSpec:
    """A controller as named by a user.

    Attributes:
        name: its catalogue name.
        parameters: the leading parameters that were given.
        assigned: values of knobs by name, for controllers that take these.
        chosen_knobs: comma-separated knobs of its environment, where they were named; empty for the usual ones.
        multiples: True if its clip norms are multiples of the calibrated length of an update.
    """

    name: str
    parameters: tuple[float, ...] = ()
    assigned: tuple[tuple[str, float], ...] = ()
    chosen_knobs: str = ""
    multiples: bool = False

    def __str__(self) -> str:
        given = zip(self.controller.parameters, self.parameters, strict=False)
        suffixes = [(value, MULTIPLE if self.multiples and one.in_multiples else "") for one, value in given]
        pieces = [self.name, *(f"{value:.12g}{suffix}" for value, suffix in suffixes)]
        pieces += [",".join(f"{name}={value:.12g}" for name, value in self.assigned)] if self.assigned else []
        return ":".join([*pieces, self.chosen_knobs] if self.chosen_knobs else pieces)

    @property
    def controller(self) -> type[Controller]:
        """Class of the controller."""
        return CONTROLLERS.find(self.name)

    @property
    def knobs(self) -> str:
        """Comma-separated knobs that its environment must have."""
        own = base_knobs(name for name, _ in self.assigned)
        names = self.chosen_knobs or own or self.controller.usual_knobs or self.controller.needed_knobs
        if not self.multiples:
            return names
        return ",".join(MULTIPLES if name == CLIP_NORM else name for name in names.split(","))

    @property
    def signals(self) -> str:
        """Signal set that its environment must show."""
        return self.controller.needed_signals

    @property
    def anchored(self) -> bool:
        """True if a parameter that was not given derives from an anchor clip norm, which a search should find first."""
        return any(one.unit == ANCHOR for one in self.controller.parameters[len(self.parameters) :])

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """Clip norms among the given values, which the range of the environment's knob must hold."""
        if self.multiples:
            return ()
        bounded = zip(self.controller.parameters, self.parameters, strict=False)
        given = [value for one, value in bounded if one.knob == CLIP_NORM]
        return (*given, *(value for name, value in self.assigned if name == CLIP_NORM))

    def named_parameters(self) -> dict[str, float]:
        """Return the given parameters by name."""
        given = {one.name: value for one, value in zip(self.controller.parameters, self.parameters, strict=False)}
        return given | dict(self.assigned)

    def view(self, env: Any) -> View:
        """Return the view of an environment that the controller is made for, with clip norms in the spec's unit.

        Raises:
            InputError: it is no DPilot environment, or lacks the knob of multiples.
        """
        view = View.of(env)
        return view.with_multiples() if self.multiples else view


@checked
def parse_controller(spec: str) -> ControllerSpec:
    """Parse a spec such as `fixed:0.5`, `exponential-decay:2:0.5`, `aqc` or `constant:clip_norm=0.5`.

    Clip norms with an x, as in `exponential-decay:1x:0.25x`, are multiples of the length that a client's update has on
    random data, which costs no privacy (`fl_core.run.calibration`).

    Raises:
        InputError: the name is unknown, or parameters are too many, too few, no numbers, or out of range.
    """
    name, rest = CONTROLLERS.split(spec)
    controller = CONTROLLERS.find(name)
    texts = rest.split(":") if rest or spec.strip() != name else []
    if controller.assigns:
        return ControllerSpec(name, assigned=read_assignments(spec, ":".join(texts)))
    expected = () if controller.tuned else controller.parameters
    chosen = texts.pop() if controller.takes_knobs and len(texts) == len(expected) + 1 else ""
    if len(texts) > len(expected):
        takes = "no parameters" if not expected else f"at most {len(expected)}"
        raise InputError(f"controller '{spec}' has {len(texts)} parameters, but {controller.usage()} takes {takes}.")
    multiples = _in_multiples(spec, expected, texts)
    values = tuple(
        one.check(name, read_value(f"{one.name} of controller '{spec}'", _number(one, text), float, finite=True))
        for one, text in zip(expected, texts, strict=False)
    )
    left_out = [one.name for one in expected[len(texts) :] if one.unit == ANCHOR]
    given = [one.name for one in expected[: len(texts)] if one.unit == ANCHOR]
    require(
        not given or not left_out,
        f"controller '{spec}' has {' and '.join(given)} but no {' and no '.join(left_out)}; give all or none.",
    )
    return ControllerSpec(name, values, chosen_knobs=chosen, multiples=multiples)


def _number(parameter: Parameter, text: str) -> str:
    """Return the text of a value without the unit of a multiple."""
    return text.strip().removesuffix(MULTIPLE) if parameter.in_multiples else text


def _in_multiples(spec: str, parameters: Sequence[Parameter], texts: Sequence[str]) -> bool:
    """Return True if the clip norms of a spec are multiples of the calibrated length of an update, as `fixed:1x`.

    Raises:
        InputError: only some of them are.
    """
    given = [text.strip() for one, text in zip(parameters, texts, strict=False) if one.in_multiples]
    marked = [text for text in given if text.endswith(MULTIPLE)]
    require(
        len(marked) in (0, len(given)),
        f"controller '{spec}' has clip norms in two units; write an {MULTIPLE} behind all of them or none.",
    )
    return bool(marked)


@checked
def make_controller(spec: str | ControllerSpec | type[Controller], env: Any, anchor: float | None = None) -> Controller:
    """Make the controller of a spec for an environment.

    Args:
        spec: as `parse_controller` reads it, or a class of controllers.
        env: any face of a DPilot environment that has the spec's knobs and signals.
        anchor: clip norm C* that parameters left out derive from: decays go from 2 C* to C*/2 within the knob's range,
            `server-lr-decay` takes 2 C*, `best-fixed` C*. None takes the task's default; `best-fixed` refuses that.

    Raises:
        InputError: the spec, the anchor or the environment does not fit.
    """
    known = spec if isinstance(spec, ControllerSpec) else parse_controller(CONTROLLERS.name_of(spec))
    return known.controller.for_env(known.view(env), anchor, **known.named_parameters())
