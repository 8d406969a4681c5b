"""Alternatives to a setting: other numbers of rounds and sampling rates, and what would make its privacy usable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.advice.rule import SPARED, Rule, agreement_of
from experiments.advice.signal import Signal, Updates, changed, noise_multiplier_of, signal_of
from fl_core.base.errors import InputError
from fl_core.run.budget import planned_epsilon
from fl_core.run.config import FederationConfig

ROUNDS = (10, 20, 40, 80, 160)
"""Numbers of rounds that are looked at beside a run's own: those that the rule was fitted to."""
RATES = (0.5, 2.0, 4.0)
"""Factors on the sampling rate that are looked at."""


@dataclass(frozen=True)
class Choice:
    """What a number of rounds and a sampling rate give.

    Attributes:
        rounds: T.
        sampling_rate: q.
        signal: noise and signal to noise.
        kept: expected share of the gain over chance of the same training without noise, at the advised clip norm.
        multiple: that clip norm, in calibrated lengths.
        work: expected client-rounds, q·N·T.
    """

    rounds: int
    sampling_rate: float
    signal: Signal
    kept: float
    multiple: float
    work: float

    @classmethod
    def of(cls, config: FederationConfig, updates: Updates, rule: Rule) -> Choice:
        """Look at what a configuration chooses; `InputError` where its budget cannot be certified."""
        agreement = agreement_of(config, updates.classes)
        signal, rounds = signal_of(config, updates.noised, agreement), config.rounds
        kept = rule.expected(rule.felt(signal), rounds, rule.pace(updates))
        multiple = rule.multiple(rule.felt(signal), rounds, rule.pace(updates))
        return cls(rounds, config.sampling_rate, signal, kept, multiple, config.cohort * rounds)


def over_rounds(config: FederationConfig, updates: Updates, rule: Rule, others: Sequence[int] = ROUNDS) -> list[Choice]:
    """Look at other numbers of rounds, in their order; those that the budget does not allow are left out."""
    return _each(config, "rounds", sorted({*others, config.rounds}), updates, rule)


def over_rates(config: FederationConfig, updates: Updates, rule: Rule) -> list[Choice]:
    """Look at other sampling rates, in their order; none where all clients take part."""
    own = config.sampling_rate
    if own == 1:
        return []
    rates = sorted({1.0, own, *(min(1.0, float(f"{own * factor:.4g}")) for factor in RATES)})
    return _each(config, "sampling_rate", rates, updates, rule)


def _each(config: FederationConfig, name: str, values: Sequence[float], updates: Updates, rule: Rule) -> list[Choice]:
    found = []
    for value in values:
        try:
            found.append(Choice.of(changed(config, **{name: value}), updates, rule))
        except InputError:
            if value == getattr(config, name):
                raise
    return found


def recommended(choices: Sequence[Choice]) -> Choice:
    """Choose the one of least work that keeps, within `SPARED`, as much as the best."""
    most = max(one.kept for one in choices)
    return min((one for one in choices if one.kept >= most - SPARED), key=lambda one: one.work)


# ---------------------------------------------------------------- what would make it usable


def clients_for(config: FederationConfig, signal: Signal, factor: float) -> int:
    """Compute the clients N at which the signal to noise is so many times as large: it grows with N, or √N locally.

    Rate, budget and the data of a client stay as they are.
    """
    return math.ceil(config.clients * (factor**2 if signal.by_upload else factor) - 1e-9)


def epsilon_for(config: FederationConfig, factor: float) -> float:
    """Compute the ε at which the signal to noise is so many times as large; infinite beyond what a ledger can hold.

    The noise multiplier is divided by the factor, and the ε of all rounds at it follows from the accounting.
    """
    joint = noise_multiplier_of(changed(config, telemetry_share=0.0, bit_noise=0.0))
    size = (config.delta, config.accounting_rate, config.rounds)
    try:
        return planned_epsilon(joint / factor, *size, config.neighbours, config.guarantee == "as-published")
    except InputError:
        return math.inf
