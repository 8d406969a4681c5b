"""The controller that learns within the run, as users name it, and what it needs of the run."""

from __future__ import annotations

from dataclasses import dataclass

from fl_core.base.errors import require, require_name
from fl_core.base.values import read_value
from fl_core.run.ranges import SEED

NAME = "online-ppo"
SEEN = {"accounted": ("accuracy_noised", "loss_noised"), "paper": ("trimmed_accuracy", "trimmed_loss")}
"""Features for accuracy and loss, the agent's state, by the signal set that shows them."""
TELEMETRY = ("accuracy", "loss")
"""Telemetry that the run must pay for where the agent sees accounted signals."""
KNOBS = "clip_norm"


@dataclass(frozen=True)
class OnlineSpec:
    """The controller as named by a user: `online-ppo[:accounted|:paper][:SEED]`.

    Attributes:
        signals: signal set that it sees; empty takes accounted signals where the guarantee is sound, and as published
            the exact ones, as the paper does.
        seed: of weights and exploration.
    """

    signals: str = ""
    seed: int = 0

    def __str__(self) -> str:
        return ":".join([NAME, *([self.signals] if self.signals else []), *([str(self.seed)] if self.seed else [])])

    def signals_in(self, guarantee: str) -> str:
        """Signal set that it sees under a guarantee."""
        return self.signals or ("accounted" if guarantee == "sound" else "paper")


def parse_online(text: str) -> OnlineSpec:
    """Read a spec.

    Raises:
        InputError: a part of it is neither a signal set nor a seed.
    """
    name, *pieces = text.split(":")
    require_name("controller", name, [NAME])
    require(all(pieces), f"controller '{text}' has an empty part; write {NAME}[:accounted|:paper][:SEED].")
    signals = pieces.pop(0) if pieces and not pieces[0].isdecimal() else ""
    if signals:
        require_name(f"signals of controller '{NAME}'", signals, SEEN)
    require(
        not pieces or (len(pieces) == 1 and pieces[0].isdecimal()),
        f"controller '{text}' does not end with a seed; write {NAME}[:accounted|:paper][:SEED].",
    )
    seed = read_value(f"seed of controller '{NAME}'", pieces[0], int) if pieces else 0
    SEED.check(f"seed of controller '{NAME}'", seed)
    return OnlineSpec(signals, seed)
