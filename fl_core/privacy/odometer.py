"""Odometers: what a run has cost so far, valid at every time at once, whenever and for whatever reason it is read.

ε of the rounds so far by a filter or an accountant is not that: whoever stops because of what was released has chosen
its value after looking. An odometer reading u(t) holds for every stopping time τ: E[(1 − exp(u(τ) − L(τ)))⁺] <= δ for
the privacy loss L, that is (u, δ)-DP of whatever was released when somebody stopped.

* Noise chosen adaptively: a mixture of Rényi orders. At one order α, exp((α − 1)(L − Σ RDP_α)) is a nonnegative
  supermartingale of mean at most 1, which makes the Rényi filter's own ε an odometer (Feldman and Zrnic 2021; Lécuyer,
  "Practical privacy filters and odometers with Rényi differential privacy", 2021). A mixture Σ w_α of these is one too,
  the method of mixtures of Whitehouse, Ramdas, Rogers, Wu, "Fully-adaptive composition in differential privacy" (2023),
  and the least u with (1 − exp(u − L))⁺ <= δ·Σ w_α exp((α − 1)(L − Σ RDP_α)) for every L is near the best order's ε at
  every spent budget. With one order that u is the conversion of Balle et al. 2020.
* Noise fixed in advance: stopping anywhere in the first k rounds is a post-processing of them, so prefixes of the plan
  on a geometric grid, each at its part of δ, bound all stopping times by a union bound (Rogers et al., "Privacy
  odometers and filters", 2016), and each prefix is counted by its privacy loss distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fl_core.base.arrays import FloatArray
from fl_core.base.libraries import optimize, special
from fl_core.privacy import accounting
from fl_core.privacy.curves import ORDERS, rdp_closed_form, rdp_slack
from fl_core.privacy.history import Segment

_SPACING = math.sqrt(2)  # of the orders less 1
_TOP = 0.5  # weight of the order, and of the prefix, that is best at the end


@dataclass(frozen=True)
class MixtureOdometer:
    """For noise chosen adaptively.

    Attributes:
        delta: δ.
        best: whole order that gets half the weight, such as that of the budget's end; the others share the rest.
    """

    delta: float
    best: int

    @cached_property
    def _orders(self) -> tuple[int, ...]:
        grid = {round(1 + _SPACING**step) for step in range(21)}
        return tuple(sorted({*grid, self.best}))

    def reading(self, segments: Iterable[Segment]) -> float:
        """ε of everything released so far; 0 before the first release."""
        total = np.zeros(len(self._orders))
        for sigma, q, steps in segments:
            total += steps * rdp_closed_form(q, sigma, self._orders)
        if not np.any(total > 0):
            return 0.0
        return self._invert(total) if np.all(np.isfinite(total)) else math.inf

    def _invert(self, spent: FloatArray) -> float:
        """u = max over L of L + ln(1 − δS(L)), S being the mixture: concave, its maximum where δ(S + S') = 1."""
        excess = np.array(self._orders, dtype=float) - 1
        weights = np.where(np.array(self._orders) == self.best, _TOP, (1 - _TOP) / (len(self._orders) - 1))
        logs = np.log(weights * self.delta)

        def slope(loss: float) -> float:
            return float(special.logsumexp(logs + np.log(excess + 1) + excess * (loss - spent)))

        high = float(np.min(spent - (logs + np.log(excess + 1)) / excess))  # one order alone reaches it there
        low = high - 1.0
        while slope(low) > 0:
            low -= 2 * (high - low)
        loss = float(optimize.brentq(slope, low, high + 1e-9, xtol=1e-13, rtol=1e-14))
        found = loss + math.log1p(-math.exp(float(special.logsumexp(logs + excess * (loss - spent)))))
        return max(0.0, found) + 1e-9


@dataclass(frozen=True)
class PlannedOdometer:
    """For a plan of equal rounds whose noise was fixed in advance.

    Attributes:
        delta: δ.
        noise_multiplier: σ of every round.
        sampling_rate: q.
        rounds: of the plan.
    """

    delta: float
    noise_multiplier: float
    sampling_rate: float
    rounds: int

    def reading(self, rounds: int) -> float:
        """ε of the first rounds: the least of the prefixes that hold them, all of which are valid at once."""
        if rounds == 0:
            return 0.0
        grid = [self.rounds]
        while grid[-1] > 1:
            grid.append(-(-grid[-1] // 2))
        return min(self._epsilon(one, len(grid)) for one in grid if one >= rounds)

    def _epsilon(self, prefix: int, prefixes: int) -> float:
        """ε of a prefix at its part of δ: half for the whole plan, equal parts of the rest for the others."""
        part = 1.0 if prefixes == 1 else _TOP if prefix == self.rounds else (1 - _TOP) / (prefixes - 1)
        return accounting.epsilon([(self.noise_multiplier, self.sampling_rate, prefix)], part * self.delta)


@lru_cache(maxsize=1024)
def mixture_odometer(delta: float, sampling_rate: float, noise_multiplier: float, rounds: int) -> MixtureOdometer:
    """The odometer whose best order is that of so many rounds with this noise."""
    total = rounds * rdp_closed_form(sampling_rate, noise_multiplier, ORDERS) + rdp_slack(delta)
    return MixtureOdometer(delta, ORDERS[int(np.argmin(total))])
