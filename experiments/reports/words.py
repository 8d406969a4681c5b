"""Spelling of accuracies, differences and privacy budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from experiments.records.comparison import Comparison
from experiments.statistics.resampling import Difference, Estimate, Interval

NONE = "–"
"""Cell of a number that does not exist."""
MOST_LISTED = 3
"""Most ε targets that are named one by one."""


def rounds_text(*counts: int | None) -> str:
    """Write a sum of rounds; "unknown" where one of them is."""
    known = [count for count in counts if count is not None]
    return f"{sum(known):,}" if len(known) == len(counts) else "unknown"


def percent(value: float, interval: Interval | None = None) -> str:
    """Write an accuracy in per cent, with its interval where there is one: "81.2 [80.1, 82.0]"."""
    return f"{100 * value:.1f}" + (f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else "")


def estimate_text(found: Estimate, several: bool = True) -> str:
    """Write an estimated accuracy in per cent, with its interval unless there is a single pair."""
    return percent(found.value, found.interval if several else None)


def points(difference: Difference) -> str:
    """Write a difference in percentage points: "+2.1 [+1.0, +3.2]"; without an interval for a single pair."""
    low, high = difference.interval
    interval = f" [{signed(low)}, {signed(high)}]" if difference.pairs > 1 else ""
    return signed(difference.mean) + interval


def signed(share: float) -> str:
    """Write a share in percentage points with its sign."""
    text = f"{100 * share:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")


def epsilon_text(value: float) -> str:
    """Write an ε to three decimals, without trailing zeros."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if math.isfinite(value) else "∞"


def epsilons_text(spent: Sequence[tuple[float, float]]) -> str:
    """Write the ε spent of each target, from pairs (target, ε): `4, 8`, or for many `99.9 to 100 % of it`."""
    if len(spent) <= MOST_LISTED:
        return ", ".join(epsilon_text(value) for _, value in spent)
    return f"{share_text(target_share(target, value) for target, value in spent)} of it"


def target_share(target: float, epsilon: float) -> float:
    """Compute ε as a share of its target; all of one that is infinite."""
    return 1.0 if epsilon == target else epsilon / target


def share_text(shares: Iterable[float]) -> str:
    """Write the range of some shares in per cent: `100 %` or `99.9 to 100 %`."""
    found = list(shares)
    ends = dict.fromkeys(f"{100 * end:.1f}".removesuffix(".0") for end in (min(found), max(found)))
    return f"{' to '.join(ends)} %"


def targets_text(comparison: Comparison) -> str:
    """Write the ε targets of the comparison, as `ε = 8` or `ε = 2, 8`."""
    shown = [epsilon_text(target) for target in sorted(set(comparison.targets.values()))]
    return f"ε = {', '.join(shown)}" if len(shown) <= 4 else f"ε = {shown[0]} to {shown[-1]} ({len(shown)} values)"


def basis_sentence(comparison: Comparison) -> str:
    """Write in one sentence what the ε of a comparison rests on; "" if none is finite."""
    if not any(map(math.isfinite, comparison.targets.values())):
        return ""
    stands = "as the paper claims it, is" if comparison.guarantee == "as-published" else "holds"
    return f"ε {stands} for {comparison.basis}."


def delta_text(value: float) -> str:
    """Write a δ as 1e-5."""
    return f"{value:g}".replace("e-0", "e-")
