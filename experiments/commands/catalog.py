"""Catalogue of the commands of `dpilot`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A command.

    Attributes:
        summary: what it is about, for the overview.
        place: its dataclass, as MODULE:NAME; imported only when the command runs.
    """

    summary: str
    place: str

    def load(self) -> type[Any]:
        """Import the command's dataclass."""
        module, name = self.place.split(":")
        command: type[Any] = getattr(importlib.import_module(f"experiments.commands.{module}"), name)
        return command


COMMANDS = {
    "demo": Entry("train a clipping controller on real digits and compare it, in minutes", "demo:DemoCommand"),
    "run": Entry("one federated run under one controller", "run:RunCommand"),
    "train": Entry(
        "train a controller with one of the learning algorithms (`dpilot list algorithms`)", "train:TrainCommand"
    ),
    "import": Entry(
        "a policy that was trained elsewhere (stable-baselines3, ONNX, TorchScript), as a controller",
        "import_policy:ImportCommand",
    ),
    "rank": Entry("the best of several trainings, by the validation that each has kept", "rank:RankCommand"),
    "compare": Entry("controllers on held-out instances at the same epsilon", "compare:CompareCommand"),
    "ledger": Entry(
        "the privacy of a run: what was released, what it cost, and which epsilon holds", "ledger:LedgerCommand"
    ),
    "audit": Entry("attacks on the real rounds of a method, against what it claims", "audit:AuditCommand"),
    "paper": Entry("a paper's table, run and set beside its printed numbers", "paper:PaperCommand"),
    "export": Entry("rounds as one table, figures and LaTeX of finished work", "export:ExportCommand"),
    "list": Entry(
        "what there is to choose from: tasks, methods, controllers, algorithms and the rest", "lists:ListCommand"
    ),
    "completion": Entry("a script that completes commands and options in a shell", "completion:CompletionCommand"),
}
