"""Privacy cost of training and search, had they been done on the clients that are protected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from fl_core.base.errors import require
from fl_core.base.fields import check_types, record_fields
from fl_core.privacy import accounting


@dataclass(frozen=True)
class PriorRounds:
    """Rounds of equal noise in the runs that trained or tuned a controller, before it is compared."""

    rounds: int
    """Number of rounds, over all of the runs."""
    run_rounds: int
    """Rounds of one whole run."""
    epsilon: float
    """ε that a whole run may spend; infinite without privacy."""
    noise_multiplier: float
    """σ of every round of a run that spends this ε evenly: 0 without noise, infinite where nothing is released."""
    sampling_rate: float
    """Poisson sampling rate, in (0, 1]; 1 where the sampling amplifies nothing."""

    def __post_init__(self) -> None:
        where = "Releases"
        check_types(self, where)
        for name in ("rounds", "run_rounds"):
            require(getattr(self, name) >= 1, f"{where}: {name} is {getattr(self, name)}, but it must be at least 1.")
        require(self.epsilon > 0, f"{where}: epsilon is {self.epsilon}, but it must be above 0.")
        sigma, q = self.noise_multiplier, self.sampling_rate
        require(sigma >= 0, f"{where}: noise_multiplier is {sigma}, but it must be at least 0.")
        require(0 < q <= 1, f"{where}: sampling_rate is {q}, but it must lie in (0, 1].")

    @property
    def runs(self) -> float:
        """Number of whole runs that the rounds amount to."""
        return self.rounds / self.run_rounds

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parse the rounds of a comparison's file; `InputError` for anything else."""
        return cls(**record_fields(cls, data, "Releases"))


def composed_epsilon(releases: Iterable[PriorRounds], delta: float) -> float:
    """Compose all these rounds to one ε at δ, as releases about one client; infinite where one had no noise.

    They are composed as Gaussian mechanisms, by Gaussian differential privacy (Dong, Roth, Su 2022) where none is
    sampled, else by privacy loss distributions.
    """
    return _composed(tuple((one.noise_multiplier, one.sampling_rate, one.rounds) for one in releases), delta)


def composition_words(releases: Iterable[PriorRounds]) -> str:
    """Name the accountant by which `composed_epsilon` composes them."""
    full = all(one.sampling_rate == 1 for one in releases)
    return "Gaussian differential privacy" if full else "privacy loss distributions"


@lru_cache(maxsize=256)
def _composed(segments: Sequence[tuple[float, float, int]], delta: float) -> float:
    accountant = "gdp" if all(q == 1 for _, q, _ in segments) else "pld"
    return accounting.epsilon(segments, delta, accountant)
