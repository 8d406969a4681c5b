"""Metrics that are written beside a run's models: which of them epsilon covers, and which it does not.

The accountant counts what the rounds release. An exact figure of the clients (an accuracy, a loss, the share that was
clipped) that somebody is shown is a release as well, which no noise covers: `raw` metrics are those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_core.base.errors import require, require_name
from fl_core.privacy.telemetry import PER_LAYER
from fl_core.run.plan import METRICS

SHOWS = {
    "all": "every metric, exact figures of the clients too; what epsilon does not cover is listed",
    "covered": "what is public, or paid for from the budget, and nothing else",
}

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Shown:
    """Selects what a run writes and prints.

    Attributes:
        show: one of `SHOWS`.
    """

    show: str = "all"

    def __post_init__(self) -> None:
        require_name("show", self.show, SHOWS)

    @property
    def everything(self) -> bool:
        """True if exact metrics of the clients are written, too."""
        return self.show == "all"

    def of(self, metrics: Metrics) -> dict[str, float]:
        """Select the metrics of a round that may be written."""
        return {name: value for name, value in metrics.items() if self.everything or not is_exact(name)}

    def uncovered(self, history: Iterable[Metrics]) -> tuple[str, ...]:
        """List what is shown of these rounds though no epsilon covers it."""
        return exact_metrics(name for metrics in history for name in self.of(metrics))

    def check(self, facts: Mapping[str, Any], epsilon: float, tuned_here: bool) -> None:
        """Refuse to call a run covered whose own releases, or whose controller, are not.

        Args:
            facts: fields of the run's `RunFacts`.
            epsilon: its budget.
            tuned_here: whether its controller was trained or tuned on exact figures of these clients.

        Raises:
            InputError: `show` is covered, and something in what it would leave is not.
        """
        if self.everything:
            return
        say = f"show is '{self.show}', but"
        require(
            facts["guarantee"] == "sound",
            f"{say} guarantee is {facts['guarantee']}, whose ledger holds figures of the cohorts; set it to sound.",
        )
        require(
            not facts["exchanges"] or (facts["private"] and epsilon < math.inf),
            f"{say} method '{facts['method']}' at epsilon {epsilon:g} adds no noise, so nothing is covered.",
        )
        require(not facts["uncovered"], f"{say} the run gives away {'; '.join(facts['uncovered'])}.")
        require(
            not tuned_here,
            f"{say} controller '{facts['controller']}' was tuned on exact figures of these clients; tune it on proxy.",
        )


def is_exact(metric: str) -> bool:
    """Return True for a metric that is exact private telemetry; one that is in no catalogue counts as exact."""
    known = METRICS.get(metric.partition(PER_LAYER)[0])
    return known is None or known.signal_class == "raw"


def exact_metrics(metrics: Iterable[str]) -> tuple[str, ...]:
    """List the exact ones of these metrics, each once."""
    return tuple(dict.fromkeys(name.partition(PER_LAYER)[0] for name in metrics if is_exact(name)))


def not_covered(uncovered: Iterable[str], shown: Iterable[str]) -> tuple[str, ...]:
    """List what is shown and that no epsilon covers, in words.

    Args:
        uncovered: what the method gives away without noise, in words.
        shown: exact metrics that are written.
    """
    names = ", ".join(name.replace("_", " ") for name in shown)
    return (*uncovered, f"exact figures of the clients: {names}") if names else tuple(uncovered)
