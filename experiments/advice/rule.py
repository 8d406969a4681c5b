"""How much of what can be learned without noise is kept with it: a rule whose constants were fitted to proxy runs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from typing import Any

from experiments.advice.signal import Signal, Updates
from fl_core.data.partition import concentration
from fl_core.run.config import FederationConfig

FILE = "rule.json"
USABLE, MARGINAL = 0.75, 0.5
"""Shares of the gain over chance that training without noise has: from the first on, privacy is called usable; below
the second, where noise takes more than training gives, not usable; marginal between them."""
VERDICTS = ("not usable", "marginal", "usable")
LONGEST_CLIP = 1.0
"""Longest clip norm that is advised, in calibrated lengths: beyond it few updates get longer, and the noise does."""
_PARTS = 32
"""Steps in which less signal is looked at, for travels that are too short for all of it."""
SPARED = 0.02
"""Share that fewer rounds may cost for being fewer."""


@dataclass(frozen=True)
class Rule:
    """What is kept of the gain of training without noise, as a function of signal to noise, rounds and travel.

    With the felt signal to noise of the whole run s, T rounds, and the travel X = m·S'·T of clip norms that are m
    calibrated lengths, each of which is as far as S gradients go, S' = S·(g/g₀)^ρ, with g the norm of a gradient:

        kept = s²/(s² + H²(1 + T₀/T)) · exp(−ln²(X/W)/2v²),  W = W₀ s^β,

    v being v₁ for travels shorter than the best, W, and v₂ for longer ones; where less signal would keep more of a
    travel that is too short for it, so much is kept, as more signal does no harm. The first factor is the share that
    signal has of the released power; clip norm × rounds being about constant is the second.

    The expected signal to noise is a·Q, with the Q of `experiments.advice.signal` and the agreement a = a₀ exp(−γκ),
    the norm of the mean clipped update over C, which falls with the rate κ of how few classes a client holds
    (`fl_core.data.partition.concentration`). It is felt as s = a·Q·(d/d₀)^ν: noise is spread over all d coordinates,
    and the more there are, the less of it matters.

    Attributes:
        half: H, the s at which half is kept in long runs.
        rounds: T₀.
        travel: W₀.
        exponent: β.
        short, long: v₁, v₂.
        agreement: a₀, of clients who hold all classes evenly.
        decline: γ.
        steepness: ρ; at 0 a travel is so many gradients far, whatever their length, at 1 so far in the parameters.
        gradient: g₀, that of the task `digits`.
        sparing: ν.
        size: d₀, that of the task `digits`.
    """

    half: float
    rounds: float
    travel: float
    exponent: float
    short: float
    long: float
    agreement: float
    decline: float
    steepness: float = 0.0
    gradient: float = 1.0
    sparing: float = 0.0
    size: float = 1.0

    def felt(self, signal: Signal) -> float:
        """Compute s, from the expected signal to noise and the number of coordinates with noise."""
        return float(signal.of_run * (signal.noised / self.size) ** self.sparing)

    def pace(self, updates: Updates) -> float:
        """Compute S', the travel of one round at a clip norm of the calibrated length."""
        return float(updates.step * (updates.gradient / self.gradient) ** self.steepness)

    def agreement_of(self, concentration: float) -> float:
        """Compute a for a rate of how few classes a client holds, in [0, 1]."""
        return self.agreement * math.exp(-self.decline * concentration)

    def kept(self, signal: float, rounds: float) -> float:
        """Compute the share that is kept at the best clip norm."""
        return signal**2 / (signal**2 + self._half(rounds) ** 2)

    def best_travel(self, signal: float) -> float:
        """Compute W."""
        return float(self.travel * signal**self.exponent)

    def multiple(self, signal: float, rounds: float, pace: float) -> float:
        """Compute the clip norm that is advised, in calibrated lengths, which travel `pace` a round."""
        return min(LONGEST_CLIP, self.best_travel(signal) / (rounds * pace))

    def kept_at(self, signal: float, rounds: float, travel: float) -> float:
        """Compute the share that is kept at a travel."""
        fits = (travel / self.travel) ** (1 / self.exponent)  # the s that it is the best for
        if signal <= fits:
            return self._off(signal, rounds, travel)
        return max(self._off(fits * (signal / fits) ** (part / _PARTS), rounds, travel) for part in range(_PARTS + 1))

    def _off(self, signal: float, rounds: float, travel: float) -> float:
        off = math.log(travel / self.best_travel(signal))
        width = self.short if off < 0 else self.long
        return self.kept(signal, rounds) * math.exp(-0.5 * (off / width) ** 2)

    def expected(self, signal: float, rounds: float, pace: float) -> float:
        """Compute the share that is kept at the advised clip norm, which short runs or steps hold back."""
        return self.kept_at(signal, rounds, self.multiple(signal, rounds, pace) * rounds * pace)

    def needed(self, kept: float, rounds: float) -> float:
        """Compute the s at which so much is kept: the inverse of `kept`."""
        return self._half(rounds) * math.sqrt(kept / (1 - kept))

    def verdict(self, signal: float, rounds: float) -> str:
        """Name the usability of client-level privacy, one of `VERDICTS`."""
        kept = self.kept(signal, rounds)
        return VERDICTS[(kept >= MARGINAL) + (kept >= USABLE)]

    def _half(self, rounds: float) -> float:
        return self.half * math.sqrt(1 + self.rounds / rounds)


@lru_cache(maxsize=1)
def evidence_of_rule() -> dict[str, Any]:
    """Read the file that the rule comes from: constants, errors, the runs they were fitted to, and the command."""
    read: dict[str, Any] = json.loads(files("experiments.advice").joinpath(FILE).read_text(encoding="utf-8"))
    return read


@lru_cache(maxsize=1)
def fitted() -> Rule:
    """Return the rule with the constants that `python -m experiments.advice.calibrate` has found."""
    return Rule(**{one.name: evidence_of_rule()["constants"][one.name] for one in fields(Rule)})


def agreement_of(config: FederationConfig, classes: int) -> float:
    """Compute the agreement that a configuration's clients are expected to have, from the name of their partition."""
    return fitted().agreement_of(concentration(config.partition, classes))
