"""Cohorts of many rounds, drawn by the federation itself, against the Poisson samples that the books count.

Amplification by sampling holds where each client takes part in each round by a coin of its own: with the probability
that the books were told, whoever else takes part, and whatever happened in other rounds. All tests are of counts whose
distributions are known: single clients and pairs by exact binomial tails, overlaps of two rounds likewise, sizes and
rounds at a distance by sums of many independent or uncorrelated terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_core.audit.findings import Finding
from fl_core.audit.staging import StagedFederation, audit_seeds
from fl_core.base.arrays import BoolArray
from fl_core.run.config import FederationConfig

RUNS, ROUNDS = 8, 512
"""Seeds, and rounds of each, whose cohorts are drawn."""
MOST_CLIENTS = 256
"""Clients whose pairs are looked at, at most."""
MOST_COMPARED = 768
"""Rounds compared with each other, at most."""
MOST_LAG = 64
"""Distance of rounds that are compared on average."""
ERROR = 1e-3
"""Probability of an alarm on true cohorts, a fifth for each test."""


@dataclass(frozen=True)
class CohortDraws:
    """Results of the attack on the cohorts.

    Attributes:
        rounds: cohorts drawn.
        told: sampling rate by which the books amplify; 1 where they do not.
        rate: measured share of the clients.
        least, most: share of the rounds in which single clients took part, the least and the greatest.
        spread: variance of the cohorts' sizes over that of Poisson samples.
        findings: what is not as claimed.
    """

    rounds: int
    told: float
    rate: float
    least: float
    most: float
    spread: float
    findings: tuple[Finding, ...]


def attack_cohorts(config: FederationConfig, seed: int) -> CohortDraws | None:
    """Draw the cohorts of many rounds; None where all clients take part in every one.

    Args:
        config: the federation as it is to run.
        seed: of the runs.
    """
    if config.sampling_rate == 1:
        return None
    federation = StagedFederation(config, audit_seeds(seed, RUNS))
    drawn = federation.drawn(ROUNDS)
    told = federation.charging.budgets[0].sampling_rate
    return measure_cohorts(drawn, told, config.cohort)


def measure_cohorts(drawn: BoolArray, told: float, expected: float) -> CohortDraws:
    """Test cohorts against the claim.

    Args:
        drawn: clients that took part `[runs, rounds, clients]`.
        told: sampling rate of the books; at 1 they count nothing on the cohorts but their size, if that is fixed.
        expected: public expected size of a cohort.
    """
    clients = drawn.shape[-1]
    flat = drawn.reshape(-1, clients)
    shares, rate = flat.mean(0), float(flat.mean())
    variance = clients * rate * (1 - rate)
    spread = float(np.mean((flat.sum(-1) - clients * rate) ** 2)) / max(variance, 1e-300)
    found = [] if told == 1 else list(_not_poisson(drawn, told))
    if told == 1 and abs(rate * clients - expected) > 6 * math.sqrt(max(1.0, variance) / len(flat)):
        found.append(_finding("size", False, f"cohorts have {rate * clients:.4g} clients on average, not {expected:g}"))
    return CohortDraws(len(flat), told, rate, float(shares.min()), float(shares.max()), spread, tuple(found))


def _not_poisson(drawn: BoolArray, told: float) -> Iterator[Finding]:
    """Find what distinguishes cohorts from independent coins of the rate that was told."""
    clients = drawn.shape[-1]
    flat, error = drawn.reshape(-1, clients), ERROR / 5
    counts = flat.sum(0)
    often = int(counts.argmax())
    if stats.binom.sf(counts[often] - 1, len(flat), told) < error / 2 / clients:
        text = f"client {often} takes part in {counts[often] / len(flat):.3g} of the rounds, where {told:g} is counted"
        yield _finding("rate", True, text)
        return  # the other tests would only say it again
    if stats.binom.cdf(counts.min(), len(flat), told) < error / 2 / clients:
        text = f"client {int(counts.argmin())} takes part in {counts.min() / len(flat):.3g} of the rounds, not {told:g}"
        yield _finding("rarely", False, text)
    rate = float(flat.mean())
    if not 0 < rate < 1:
        return
    spread, odd = _sizes(flat.sum(-1), clients, rate)
    if stats.norm.sf(abs(odd)) < error / 2:
        text = f"cohorts are no Poisson samples: the variance of their sizes is {spread:.3g} times as large"
        yield _finding("sizes", True, text)
    yield from _pairs(flat, rate, error)
    yield from _rounds(drawn, rate, error)
    yield from _overlaps(flat, rate, error)


def _sizes(sizes: NDArray[np.int64], clients: int, rate: float) -> tuple[float, float]:
    """Variance of the sizes over the binomial one, and its distance from 1 in standard deviations."""
    variance = clients * rate * (1 - rate)
    ratio = float(np.mean((sizes - clients * rate) ** 2)) / variance
    deviation = math.sqrt((2 + (1 - 6 * rate * (1 - rate)) / variance) / len(sizes))
    return ratio, (ratio - 1) / deviation


def _pairs(flat: BoolArray, rate: float, error: float) -> Iterator[Finding]:
    """Find two clients that take part together too often or too rarely."""
    clients = min(flat.shape[1], MOST_CLIENTS)
    chosen = np.linspace(0, flat.shape[1] - 1, clients).round().astype(int)
    rows = flat[:, chosen].astype(np.float32)
    upper = np.triu_indices(clients, 1)
    together = np.rint((rows.T @ rows)[upper]).astype(int)
    if not len(together):
        return
    for place, tail in ((together.argmax(), "sf"), (together.argmin(), "cdf")):
        count = together[place]
        p = _tail(tail, count, len(flat), rate**2)
        if p < error / 2 / len(together):
            one, other = (int(chosen[axis[place]]) for axis in upper)
            text = f"clients {one} and {other} take part together in {count / len(flat):.3g} of the rounds, where coins"
            yield _finding("pairs", True, f"{text} of their own give {rate**2:.3g}")
            return


def _rounds(drawn: BoolArray, rate: float, error: float) -> Iterator[Finding]:
    """Find a distance at which rounds depend on each other."""
    centred = drawn.astype(np.float32) - rate
    lags = range(1, min(MOST_LAG, drawn.shape[1] - 1) + 1)
    odd = []
    for lag in lags:
        products = centred[:, lag:] * centred[:, :-lag]
        odd.append(float(products.sum(dtype=np.float64)) / (rate * (1 - rate) * math.sqrt(products.size)))
    if odd and stats.norm.sf(max(map(abs, odd))) < error / 2 / len(odd):
        lag = int(np.argmax(np.abs(odd))) + 1
        how = "more" if odd[lag - 1] > 0 else "less"
        text = f"clients of a round take part {how} often than by a coin in the one that is {lag} later"
        yield _finding("rounds", True, text)


def _overlaps(flat: BoolArray, rate: float, error: float) -> Iterator[Finding]:
    """Find two cohorts, of one run or of two, that share too many clients."""
    rows = flat[np.linspace(0, len(flat) - 1, min(len(flat), MOST_COMPARED)).round().astype(int)].astype(np.float32)
    shared = np.rint((rows @ rows.T)[np.triu_indices(len(rows), 1)]).astype(int)
    if _tail("sf", shared.max(), flat.shape[1], rate**2) < error / len(shared):
        yield _finding("repeated", True, f"cohorts of different rounds share {shared.max()} clients")


def _tail(side: str, count: int, trials: int, rate: float) -> float:
    """Probability of so many or more (`sf`), or of so many or fewer (`cdf`)."""
    return float(stats.binom.sf(count - 1, trials, rate) if side == "sf" else stats.binom.cdf(count, trials, rate))


def _finding(topic: str, leak: bool, text: str) -> Finding:
    return Finding("cohorts", topic, leak, text)
