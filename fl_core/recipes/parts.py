"""What the five parts of a method have in common: knobs, releases, and what they leave uncovered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class KnobRange:
    """A setting of a part that a controller may choose for every round.

    Attributes:
        name: what plans, environments and the command line call it.
        low, high: range of its values.
        default: value where nobody sets it.
        scale: `log` or `linear`, how an action spans the range.
        summary: what it does.
        per_layer: whether it has one value per layer of the model.
    """

    name: str
    low: float
    high: float
    default: float
    scale: str
    summary: str
    per_layer: bool = False


def clamp_size(count: int, cohort: float) -> float:
    """M of a clamp or clip to C/√M per coordinate: `count`, or where that is -1 the expected cohort, at least 1."""
    return max(1.0, cohort) if count == -1 else float(count)


class Part:
    """One of the five parts of a method.

    Attributes:
        kind: the name under which its catalogue lists it.
    """

    kind: ClassVar[str] = "none"

    @property
    def knobs(self) -> tuple[KnobRange, ...]:
        """What a controller may set about it."""
        return ()

    @property
    def releases(self) -> tuple[str, ...]:
        """What it makes known about the clients beside their updates, with noise that the ledger is charged for."""
        return ()

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What it makes known about the clients without noise that the ledger could charge, as phrases."""
        return ()
