from .algorithms import ALGORITHMS, Algorithm
from .bundle import load_controller, save_controller
from .config import TrainingConfig
from .curricula import CURRICULA, Curriculum
from .learned import LearnedController
from .online import OnlinePPO
from .trainer import TrainingResult
from .training import resume, train

__all__ = [
    "ALGORITHMS",
    "CURRICULA",
    "Algorithm",
    "Curriculum",
    "LearnedController",
    "OnlinePPO",
    "TrainingConfig",
    "TrainingResult",
    "load_controller",
    "resume",
    "save_controller",
    "train",
]
