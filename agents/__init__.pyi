from .algorithms import ALGORITHMS, Algorithm
from .bundle import load_controller, save_controller
from .config import TrainingConfig
from .curricula import CURRICULA, Curriculum
from .import_sources import ImportOptions
from .importing import from_sb3, import_policy
from .learned import LearnedController
from .loggers import LOGGERS, logging_to
from .online import OnlinePPO
from .results import TrainingResult
from .training import resume, train

__all__ = [
    "ALGORITHMS",
    "CURRICULA",
    "LOGGERS",
    "Algorithm",
    "Curriculum",
    "ImportOptions",
    "LearnedController",
    "OnlinePPO",
    "TrainingConfig",
    "TrainingResult",
    "from_sb3",
    "import_policy",
    "load_controller",
    "logging_to",
    "resume",
    "save_controller",
    "train",
]
