"""Interface of the five parts of a method: knobs, releases, and disclosures that no noise covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fl_core.base.arguments import check_fields, take_numbers
from fl_core.base.bounds import Bounds, count
from fl_core.base.errors import require, require_name

SCALES = ("log", "linear")
VALUE = Bounds(-1e12, 1e12, "no setting of a round is so large")


@dataclass(frozen=True)
class KnobRange:
    """A setting of a part that a controller may choose for every round.

    Attributes:
        name: name in plans, environments and on the command line.
        low, high: range of its values.
        default: value where nobody sets it.
        scale: `log` or `linear`, the scale on which an action spans the range.
        summary: description in one line.
        per_layer: True if it has one value per layer of the model.
    """

    name: str
    low: float
    high: float
    default: float
    scale: str
    summary: str
    per_layer: bool = False

    def __post_init__(self) -> None:
        take_numbers(self)
        check_fields(self)
        require_name(f"scale of knob '{self.name}'", self.scale, SCALES)
        for field in ("low", "high", "default"):
            VALUE.check(f"{field} of knob '{self.name}'", getattr(self, field))
        require(
            self.low < self.high and (self.low > 0 or self.scale != "log"),
            f"knob '{self.name}' has low {self.low:g} and high {self.high:g}, but low must be below high"
            f"{', and above 0 on a log scale' if self.scale == 'log' else ''}.",
        )


def clamp_size(count: int, cohort: float) -> float:
    """Compute M of a clamp or clip to C/√M per coordinate: `count`, or for -1 the expected cohort, at least 1."""
    return max(1.0, cohort) if count == -1 else float(count)


WEIGHT = Bounds(0, 1e6, "a term of more would drown the loss")
SHARE = Bounds(0, 1)
STEPS = Bounds(0.001, 1000, "a phase is a multiple of the configured local work")
SAMPLES = count(0, 10_000_000)
"""Ranges that several parts share."""


class Part:
    """One of the five parts of a method, or a part of its mechanism: its knobs, and what it releases and discloses.

    Attributes:
        kind: the name under which its catalogue lists it.
        bounds: ranges of its numbers, by field.
    """

    kind: ClassVar[str] = "none"
    bounds: ClassVar[Mapping[str, Bounds]] = {}

    @property
    def knobs(self) -> tuple[KnobRange, ...]:
        """Knobs that a controller may set."""
        return ()

    @property
    def releases(self) -> tuple[str, ...]:
        """Names of its noised releases beside the update, which the ledger is charged for."""
        return ()

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Phrases for what it discloses about clients without noise, so that no ledger can charge for it."""
        return ()
