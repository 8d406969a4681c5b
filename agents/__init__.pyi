from .algorithms import ALGORITHMS, Algorithm
from .bundle import LearnedController, load_controller, save_controller
from .config import TrainingConfig
from .curricula import CURRICULA, Curriculum
from .online import OnlinePPO
from .training import TrainingResult, resume, train

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
