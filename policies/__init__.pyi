from .adaptive_quantile import AdaptiveQuantileClip, ExactQuantileClip
from .base import Controller
from .budget_schedules import (
    BudgetSchedule,
    ExponentialBudget,
    LinearBudget,
    PrintedBudget,
    StepBudget,
    UniformBudget,
)
from .catalog import CONTROLLERS, register_controller
from .combined import CombinedControl
from .constant import ConstantControl
from .layer_weights import LogOddsWeights, PaidLogOddsWeights
from .parameters import Parameter, Range
from .personalization_schedules import NoiseScaledPersonalization, ProgressivePersonalization
from .probe import Probe
from .random_clip import RandomControl
from .schedules import (
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
from .specs import ControllerSpec, make_controller, parse_controller
from .view import Seen, View

__all__ = [
    "CONTROLLERS",
    "AdaptiveQuantileClip",
    "BestFixedClip",
    "BudgetSchedule",
    "ClientBudget",
    "CombinedControl",
    "ConstantControl",
    "Controller",
    "ControllerSpec",
    "CosineDecay",
    "ExactQuantileClip",
    "ExponentialBudget",
    "ExponentialDecay",
    "FixedClip",
    "LinearBudget",
    "LinearDecay",
    "LogOddsWeights",
    "NoControl",
    "NoiseScaledPersonalization",
    "PaidLogOddsWeights",
    "Parameter",
    "PrintedBudget",
    "Probe",
    "ProgressivePersonalization",
    "RandomControl",
    "Range",
    "Seen",
    "ServerLearningRateDecay",
    "StepBudget",
    "StepDecay",
    "TailAverage",
    "UniformBudget",
    "View",
    "make_controller",
    "parse_controller",
    "register_controller",
]
