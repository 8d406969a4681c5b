"""Claims of a method's paper about a run, beside what the same noise is worth."""

from __future__ import annotations

from dataclasses import dataclass

from fl_core.recipes.published_claims import Claim, NoisedRounds
from fl_core.run.federation import Federation


@dataclass(frozen=True)
class StatedClaim:
    """A paper's claim about a run.

    Attributes:
        claim: the claim as the recipe has it.
        stated: the ε that it states.
        certified: the ε that the noise it is about is worth to a client, against whoever sees the sums.
    """

    claim: Claim
    stated: float
    certified: float


def stated_claims(federation: Federation) -> tuple[StatedClaim, ...]:
    """Evaluate the claims of the method's paper on the first run as it stands; none unless it runs as published."""
    if federation.charging.books[0].claim is None:
        return ()
    rounds = noised_rounds(federation)
    return tuple(
        StatedClaim(claim, claim.epsilon(rounds), claim.certified(rounds)) for claim in federation.recipe.claims
    )


def noised_rounds(federation: Federation) -> NoisedRounds:
    """Collect what the papers' accountings read of the first run, which must run as published."""
    config, books = federation.config, federation.charging.books[0]
    claimed, ledger = books.budget, books.ledger
    planned = ((t, federation.recipe.mechanism.budget_share(t, config.rounds)) for t in range(config.rounds))
    counts = federation.tables.train.count[0]
    passes: float = config.local_steps * len(counts)
    if config.local_epochs:
        passes = config.local_epochs * float(counts.sum()) / config.batch_size
    return NoisedRounds(
        claimed=tuple(charge.noise_multiplier for charge in claimed.charges),
        effective=tuple(charge.noise_multiplier / ledger.sensitivity for charge in ledger.charges),
        shares=tuple(1 / (config.rounds - t) if share is None else share for t, share in planned),
        epsilon=claimed.epsilon,
        delta=claimed.delta,
        sampling_rate=config.sampling_rate,
        accounting_rate=ledger.sampling_rate,
        cohort=config.cohort,
        batch_size=config.batch_size,
        records=int(counts.sum()),
        minibatches=len(claimed.charges) * config.sampling_rate * passes,
    )
