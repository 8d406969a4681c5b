"""Catalogue of the commands of `dpilot`."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A command.

    Attributes:
        summary: what it is about, for the overview.
        place: its dataclass, with what it does; imported only when the command runs.
        options: base of that dataclass: its options, and their check, which load no library of tensors; "" for a
            command that loads none either.
    """

    summary: str
    place: str
    options: str = ""

    def load(self) -> type[Any]:
        """Import the command's dataclass."""
        command: type[Any] = resolve_name(f"experiments.commands.{self.place}")
        return command

    def load_options(self) -> type[Any]:
        """Import the dataclass of its options."""
        options: type[Any] = resolve_name(f"experiments.options.{self.options}") if self.options else self.load()
        return options


COMMANDS = {
    "demo": Entry(
        "train a clipping controller on real digits and compare it, in minutes",
        "demo:DemoCommand",
        "demo:DemoOptions",
    ),
    "run": Entry(
        "one federated run under one controller",
        "run:RunCommand",
        "run:RunOptions",
    ),
    "advise": Entry(
        "what to expect of a setting before it runs: usability, rounds, clip norm, controllers",
        "advise:AdviseCommand",
        "advise:AdviseOptions",
    ),
    "train": Entry(
        "train a controller with one of the learning algorithms (`dpilot list algorithms`)",
        "train:TrainCommand",
        "train:TrainOptions",
    ),
    "import": Entry(
        "a policy that was trained elsewhere (stable-baselines3, ONNX, TorchScript), as a controller",
        "import_policy:ImportCommand",
        "import_policy:ImportedPolicyOptions",
    ),
    "rank": Entry(
        "the best of several trainings, by the validation that each has kept",
        "rank:RankCommand",
        "rank:RankOptions",
    ),
    "compare": Entry(
        "controllers on held-out instances at the same epsilon",
        "compare:CompareCommand",
        "compare:CompareOptions",
    ),
    "ledger": Entry(
        "the privacy of a run: what was released, what it cost, and which epsilon holds",
        "ledger:LedgerCommand",
        "ledger:LedgerOptions",
    ),
    "audit": Entry(
        "attacks on the real rounds of a method, against what it claims",
        "audit:AuditCommand",
        "audit:AuditOptions",
    ),
    "paper": Entry(
        "a paper's table, run and set beside its printed numbers",
        "paper:PaperCommand",
        "paper:PaperOptions",
    ),
    "export": Entry(
        "rounds as one table, figures and LaTeX of finished work",
        "export:ExportCommand",
        "export:ExportOptions",
    ),
    "list": Entry(
        "what there is to choose from: tasks, methods, controllers, algorithms and the rest", "lists:ListCommand"
    ),
    "completion": Entry("a script that completes commands and options in a shell", "completion:CompletionCommand"),
}
