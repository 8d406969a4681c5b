"""The papers' own claims: the ε that each states of its noise by its own reckoning, as functions with their sources.

None of them is what the ledger certifies; reports put both side by side. The accounting that all five papers share,
Opacus' Rényi orders applied to clients, is the claim ledger's (`fl_core.privacy.filters.claim_for`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fl_core.privacy.accounting import epsilon

Multipliers = tuple[float, ...]
"""Noise multiplier of every round, std of the noise in the sum of the uploads over C."""


@dataclass(frozen=True)
class NoisedRounds:
    """What the papers' accountings read of a run.

    Attributes:
        claimed: noise multipliers that the paper's accounting handed out.
        effective: those that the noise in the sum is worth, over the most that neighbours differ by.
        shares: each round's share of the budget that was left before it, of all T rounds.
        epsilon: ε of the budget.
        delta: δ.
        sampling_rate: q, the share of the clients in a round.
        accounting_rate: the part of it that amplification may be counted for; 1 for none.
        cohort: m, the clients of a round, as expected.
        batch_size: records of a minibatch.
        records: training records of all clients together.
        minibatches: of all clients in all rounds together, as expected; one pass each.
    """

    claimed: Multipliers
    effective: Multipliers
    shares: tuple[float, ...]
    epsilon: float
    delta: float
    sampling_rate: float
    accounting_rate: float
    cohort: float
    batch_size: int
    records: int
    minibatches: float


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes:
        name: what it is, in words.
        unit: whom it is said to protect.
        source: paper, section, equation.
        epsilon: the ε that it states of rounds.
        multipliers: noise that it is about, in the convention of `Multipliers`.
    """

    name: str
    unit: str
    source: str
    epsilon: Callable[[NoisedRounds], float]
    multipliers: Callable[[NoisedRounds], Multipliers]

    def certified(self, rounds: NoisedRounds) -> float:
        """Compute the ε that the noise it is about is worth to a client, were all of it fixed in advance.

        Against whoever sees the sums: exact at full cohorts, by Rényi DP below.
        """
        rate = rounds.accounting_rate
        history = [(one, rate, 1) for one in self.multipliers(rounds)]
        return epsilon(history, rounds.delta, "gdp" if rate == 1 else "rdp")


def _effective(rounds: NoisedRounds) -> Multipliers:
    return rounds.effective


# --- FedDPA -------------------------------------------------------------------------------------------------------


def per_record(rounds: NoisedRounds) -> float:
    """Compute FedDPA's ε: as if each minibatch of a client were a release with noise of multiplier σ.

    Records are taken to be sampled at rate q·B/n from those of all clients, and every local step counts as one step of
    DP-SGD. But the noise covers one sum of client updates per round, not each minibatch's gradient.
    """
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    if not rounds.claimed:
        return 0.0
    rate = min(1.0, rounds.sampling_rate * rounds.batch_size / rounds.records)
    steps = max(1, round(rounds.minibatches / len(rounds.claimed)))
    orders = RDPAccountant.DEFAULT_ALPHAS
    spent = sum(
        compute_rdp(q=rate, noise_multiplier=sigma, steps=steps * count, orders=orders)
        for sigma, count in Counter(rounds.claimed).items()
    )
    stated, _ = get_privacy_spent(orders=orders, rdp=spent, delta=rounds.delta)
    return float(stated)


PER_RECORD = Claim(
    name="ε per record, sampled at rate batch over all records",
    unit="one record of a client",
    source="FedDPA section 3.1 (neighbours differ in one record) and its program's compute_noise_multiplier",
    epsilon=per_record,
    multipliers=_effective,
)


# --- ADP-PFL ------------------------------------------------------------------------------------------------------


def _by_equation_25(upload_noise: float, rounds: NoisedRounds) -> float:
    """Convert the multiplier σ' of the noise in an upload to a round's ε: α/(2σ'²m²)-RDP and ln(1/δ)/(α − 1)."""
    order_cost = 1 / (2 * (upload_noise * rounds.cohort) ** 2)
    return order_cost + 2 * math.sqrt(order_cost * -math.log(rounds.delta))  # at the best real order


def _noise_for(budget: float, rounds: NoisedRounds) -> float:
    """Invert `_by_equation_25`."""
    slack = -math.log(rounds.delta)
    root = budget / (math.sqrt(slack + budget) + math.sqrt(slack))  # √(slack + ε) − √slack, without cancelling
    return 1 / (math.sqrt(2) * rounds.cohort * root)


def _of_rounds(rounds: NoisedRounds) -> list[float]:
    """Compute each round's ε by equation 25, for the noise that an upload of the run really carries: C·σ/√m."""
    return [_by_equation_25(one / math.sqrt(rounds.cohort), rounds) for one in rounds.claimed]


def linear_composition(rounds: NoisedRounds) -> float:
    """Add up the rounds' ε (ADP-PFL eq. 9), each by its eq. 25."""
    return math.fsum(_of_rounds(rounds))


def largest_round(rounds: NoisedRounds) -> float:
    """Take the largest of the rounds' ε: "parallel composition" (ADP-PFL section 4.3), which needs disjoint data."""
    return max(_of_rounds(rounds), default=0.0)


def split_budget(rounds: NoisedRounds) -> list[float]:
    """Split ε itself over all rounds (ADP-PFL eq. 9 and 11): each takes its share of what is left."""
    left, parts = rounds.epsilon, []
    for share in rounds.shares:
        parts.append(share * left)
        left -= parts[-1]
    return [one for one in parts if one > 0]


def _of_split(rounds: NoisedRounds) -> Multipliers:
    """Compute the noise in the sum where every client adds N(0, C²σ²), σ by eq. 25 from the round's part of ε."""
    return tuple(math.sqrt(rounds.cohort) * _noise_for(one, rounds) for one in split_budget(rounds))


def _in_full(rounds: NoisedRounds) -> Multipliers:
    """Compute the noise in the sum where every client adds all of N(0, C²σ²), at the multipliers of the run."""
    return tuple(math.sqrt(rounds.cohort) * one for one in rounds.effective)


def _whole_split(rounds: NoisedRounds) -> float:
    return math.fsum(split_budget(rounds))


def _budget(rounds: NoisedRounds) -> float:
    return rounds.epsilon


ADP_PFL_CLAIMS = (
    Claim(
        name="ε of the rounds added up",
        unit="one client",
        source="ADP-PFL eq. 9 and 25",
        epsilon=linear_composition,
        multipliers=_effective,
    ),
    Claim(
        name="ε of the largest round alone",
        unit="one client",
        source="ADP-PFL section 4.3, parallel composition",
        epsilon=largest_round,
        multipliers=_effective,
    ),
    Claim(
        name="ε split over the rounds, and N(0, C²σ²) from every client",
        unit="one client",
        source="ADP-PFL eq. 11 and 25, Algorithm 1 line 15",
        epsilon=_whole_split,
        multipliers=_of_split,
    ),
    Claim(
        name="N(0, C²σ²) from every client at this run's σ, of which we add the m-th part",
        unit="one client",
        source="ADP-PFL Algorithm 1 line 15",
        epsilon=_budget,
        multipliers=_in_full,
    ),
)
