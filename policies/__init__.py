"""Hand-coded controllers; each speaks the `predict` of stable-baselines3."""

from policies.adaptive_quantile import AdaptiveQuantileClip
from policies.base import Controller
from policies.budget_schedules import (
    BudgetSchedule,
    ExponentialBudget,
    LinearBudget,
    PrintedBudget,
    StepBudget,
    UniformBudget,
)
from policies.catalog import CONTROLLERS, ControllerSpec, make_controller, parse_controller
from policies.parameters import Parameter
from policies.random_clip import RandomControl
from policies.schedules import (
    BestFixedClip,
    ExponentialDecay,
    FixedClip,
    LinearDecay,
    NoControl,
    ServerLearningRateDecay,
)
from policies.view import View

__all__ = [
    "CONTROLLERS",
    "AdaptiveQuantileClip",
    "BestFixedClip",
    "BudgetSchedule",
    "Controller",
    "ControllerSpec",
    "ExponentialBudget",
    "ExponentialDecay",
    "FixedClip",
    "LinearBudget",
    "LinearDecay",
    "NoControl",
    "Parameter",
    "PrintedBudget",
    "RandomControl",
    "ServerLearningRateDecay",
    "StepBudget",
    "UniformBudget",
    "View",
    "make_controller",
    "parse_controller",
]
