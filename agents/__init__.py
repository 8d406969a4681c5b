"""Learned controllers: training with stable-baselines3, checkpoints without pickles, saved controllers."""

from agents.bundle import LearnedController, load_controller, save_controller
from agents.config import TrainingConfig
from agents.training import TrainingResult, resume, train

__all__ = [
    "LearnedController",
    "TrainingConfig",
    "TrainingResult",
    "load_controller",
    "resume",
    "save_controller",
    "train",
]
