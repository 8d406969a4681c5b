"""Hand-coded controllers; each speaks the `predict` of stable-baselines3."""

from policies.adaptive_quantile import AdaptiveQuantileClip
from policies.base import Controller
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
    "Controller",
    "ControllerSpec",
    "ExponentialDecay",
    "FixedClip",
    "LinearDecay",
    "NoControl",
    "Parameter",
    "RandomControl",
    "ServerLearningRateDecay",
    "View",
    "make_controller",
    "parse_controller",
]
