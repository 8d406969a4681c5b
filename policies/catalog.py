"""The hand-coded controllers by name.

To add a controller for good, write its class and add a line here; a user's own is named as `mine.py:MyClip:0.5`.
"""

from __future__ import annotations

import inspect
from typing import Any

from envs.signals import SIGNAL_SETS
from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.signatures import require_call
from fl_core.base.sources import told
from policies.adaptive_quantile import AdaptiveQuantileClip, ExactQuantileClip
from policies.base import Controller
from policies.budget_schedules import ExponentialBudget, LinearBudget, PrintedBudget, StepBudget, UniformBudget
from policies.constant import ConstantControl
from policies.layer_weights import LogOddsWeights, PaidLogOddsWeights
from policies.parameters import Parameter
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
        InputError: it is none, lacks an attribute or `decide`, or is made or asked with other arguments.
    """
    if not inspect.isclass(given) or not issubclass(given, Controller):
        kind = f"the class {given.__name__}" if inspect.isclass(given) else f"of type {type(given).__name__}"
        raise InputError(f"{who} is {kind}, but a controller is a class made from policies.Controller.")
    for name in ("name", "summary", "label_format"):
        text = isinstance(getattr(given, name, None), str) and bool(getattr(given, name))
        require(text, f"{who} has no text as its {name}; give name, summary and label_format as class attributes.")
    missing = ", ".join(sorted(given.__abstractmethods__))
    require(not missing, f"{who} does not define {missing}.")
    require_call(given.decide, who, "itself and what it sees", (None, None))
    require_call(given.__init__, who, "itself, a view and its parameters' values", (None, None, None))
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
