"""`dpilot demo`: the whole path on real digits, in minutes on a CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agents.config import TrainingConfig
from envs.instances import INSTANCES
from experiments.commands.compare import DEFAULT_CONTROLLERS, CompareCommand, command_line
from experiments.commands.consent import require_consent
from experiments.commands.train import TrainCommand, train_in
from experiments.records.folder import require_writable
from fl_core.run.basis import basis_of

TASK = "digits"
DECISION_ROUNDS = 4
"""Rounds per decision of what is trained: a quarter of the decisions, drawn as steps in the figure."""


@dataclass(frozen=True)
class DemoCommand:
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

    def execute(self) -> dict[str, Any]:
        """Run the demo, and return the statistics of its comparison."""
        began = time.monotonic()
        say = Console(highlight=False, soft_wrap=True).print
        agent = TrainingConfig(episodes=self.episodes, seed=self.seed)
        training = TrainCommand(decision_rounds=DECISION_ROUNDS, training=agent, runs=self.runs, yes=self.yes)
        config = training.federation
        plays = (len(DEFAULT_CONTROLLERS) + 1) * self.seeds
        require_consent(self.yes, config.rounds * plays, "seeds", self.seeds, config.clients)
        for name in ("seeds", "search_instances"):
            INSTANCES.check(name, getattr(self, name))
        training.check_cost()
        require_writable("runs", self.runs / "config.yaml")
        say(
            f"[bold]The task[/bold]: {config.clients} clients hold 8x8 digits, {config.partition} of labels each; "
            f"{config.rounds} rounds of {config.method} at epsilon {config.epsilon:g}, delta {config.delta:g} "
            f"({basis_of(config)}). Which clip norm should each round use?"
        )
        say(
            f"[bold]1/2[/bold] PPO learns a clip norm for every {DECISION_ROUNDS} rounds from {self.episodes} "
            "simulated runs of proxy clients."
        )
        folder = training.new_folder()
        train_in(folder)
        say(
            f"[bold]2/2[/bold] It meets hand-coded schedules on {self.seeds} held-out instances of target clients, at "
            "equal epsilon."
        )
        comparison = CompareCommand(
            task=TASK,
            controllers=(*DEFAULT_CONTROLLERS, f"ppo:{folder}"),
            seeds=self.seeds,
            search_instances=self.search_instances,
            runs=self.runs,
            yes=True,
        )
        statistics = comparison.start(command_line())
        say(f"The whole demo took {time.monotonic() - began:.0f} s.")
        return statistics
