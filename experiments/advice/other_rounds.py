"""Numbers of rounds that searches took in settings near one, where they gained by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.advice.evidence import Evidence, lead
from experiments.contenders.specs import TUNED_ROUNDS
from experiments.statistics.resampling import Difference

RIVAL = "best-fixed"
"""Controller that is searched as well as `tuned:rounds`, but for the setting's own rounds."""


@dataclass(frozen=True)
class RoundsFound:
    """Number of rounds that a search over rounds and clip norm took on a page, and what that gained.

    Attributes:
        page: its name.
        rounds: that number.
        own: rounds of the page's setting.
        gain: final global accuracy minus that of the best fixed clip norm for its own rounds, on the same seeds.
    """

    page: str
    rounds: int
    own: int
    gain: Difference

    def as_json(self) -> dict[str, Any]:
        """Write it as JSON values by name."""
        return {**asdict(self), "gain": self.gain.mean, "interval": list(self.gain.interval)}


def rounds_found(near: Sequence[Evidence]) -> RoundsFound | None:
    """Return what a search took on the nearest page that has one; None where there is none, or no certain gain.

    Args:
        near: evidence, the nearest first.
    """
    for one in near:
        read = re.search(r" for (\d+) rounds$", one.labels.get(TUNED_ROUNDS, ""))
        gain = lead(TUNED_ROUNDS, RIVAL, [one])
        if read is not None and gain is not None:
            return RoundsFound(one.page, int(read[1]), one.config.rounds, gain) if gain.sign > 0 else None
    return None
