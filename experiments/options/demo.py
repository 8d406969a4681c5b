"""The options of `dpilot demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agents.config import TrainingConfig
from envs.instances import INSTANCES
from envs.tasks import default_federation
from experiments.options.compare import DEFAULT_CONTROLLERS
from experiments.options.consent import require_consent
from experiments.options.train import TrainOptions

DECISION_ROUNDS = 4
"""Rounds per decision of what is trained: a quarter of the decisions, drawn as steps in the figure."""


@dataclass(frozen=True)
class DemoOptions:
    """Train a clipping controller on real digits, then compare it with hand-coded ones at the same epsilon."""

    seeds: int = 20
    """Held-out instances of the comparison."""
    episodes: int = 120
    """Training episodes of the controller."""
    search_instances: int = 8
    """Training instances on which the best fixed clip norm is searched."""
    seed: int = 0
    """Seed of the training."""
    runs: Path = Path("runs")
    """Folder that receives everything."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""

    def check(self) -> None:
        """Refuse names and numbers that no command of this kind can have.

        Raises:
            InputError: one of them is not allowed.
        """
        config = default_federation()
        plays = (len(DEFAULT_CONTROLLERS) + 1) * self.seeds
        require_consent(self.yes, config.rounds * plays, "seeds", self.seeds, config.clients)
        for name in ("seeds", "search_instances"):
            INSTANCES.check(name, getattr(self, name))
        self.training().check_cost()

    def training(self) -> TrainOptions:
        """Make the options of the demo's training.

        Raises:
            InputError: a number is not allowed.
        """
        agent = TrainingConfig(episodes=self.episodes, seed=self.seed)
        return TrainOptions(decision_rounds=DECISION_ROUNDS, training=agent, runs=self.runs, yes=self.yes)
