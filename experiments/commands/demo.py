"""`dpilot demo`: the whole path on real digits, in minutes on a CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from experiments.commands.compare import CompareCommand, command_line
from experiments.commands.train import TrainCommand, train_in
from experiments.options.compare import DEFAULT_CONTROLLERS
from experiments.options.demo import DECISION_ROUNDS, DemoOptions
from experiments.records.folder import require_writable
from fl_core.run.basis import basis_of

TASK = "digits"


@dataclass(frozen=True)
class DemoCommand(DemoOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Run the demo, and return the statistics of its comparison."""
        began = time.monotonic()
        say = Console(highlight=False, soft_wrap=True).print
        self.check()
        training = TrainCommand(**vars(self.training()))
        config = training.federation
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
