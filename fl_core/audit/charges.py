"""The books against what was really released: a charge before every round, of every release, of no more noise than is.

Rounds with another clip norm and another budget each are played with nothing uploaded, so that the sums are noise; its
std over C is held against the charge of the same round. As published, the ledger certifies what the noise that is
really there hides of the least protected client; that is worked out from the uploads' masks, weights and layers, and
held against the charge as well. Rounds that the budget does not cover must release nothing, nor must rounds of other
noise than was fixed in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from fl_core.audit.bounds import Measurement, spread_interval
from fl_core.audit.claims import certified_multiplier, noise_there, received
from fl_core.audit.findings import Finding
from fl_core.audit.noise import random_moves
from fl_core.audit.staging import StagedFederation, audit_seeds
from fl_core.audit.telemetry import accounted
from fl_core.base.errors import InputError
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.releases import Charge
from fl_core.run.charging import UPDATE, Charging
from fl_core.run.config import FederationConfig
from fl_core.run.plan import RoundPlan, RoundReport
from fl_core.run.release import Cohorts, RoundRelease

ROUNDS = 6
"""Rounds played, at most."""
ERROR = 1e-3
"""Probability of an alarm on true charges."""
_CLOSE = 1e-6


@dataclass(frozen=True)
class Charges:
    """Results of the attack on the books.

    Attributes:
        rounds: rounds played.
        noise: per round, std of the update's noise over the one that was charged.
        certified: least noise multiplier that is really there over the one that the ledger certifies, over all rounds.
        refused: True if a round beyond the budget was refused and released nothing.
        kept: True if a round of other noise than was fixed in advance was refused; None if none was fixed.
        findings: what is not as charged.
    """

    rounds: int
    noise: tuple[Measurement, ...]
    certified: float
    refused: bool
    kept: bool | None
    findings: tuple[Finding, ...]

    @property
    def least(self) -> Measurement:
        """Noise of the round that had the least of what was charged."""
        return min(self.noise, key=lambda one: one.value)


def attack_charges(config: FederationConfig, clip_norm: float, seed: int) -> Charges:
    """Play rounds of noise, and compare the books with it.

    Args:
        config: the federation as it is to run.
        clip_norm: C.
        seed: of the run.
    """
    federation = StagedFederation(config, audit_seeds(seed, 1))
    federation.shown[:] = False
    federation.moves = random_moves(federation, clip_norm, seed)
    attack = _Attack(federation)
    for index in range(min(config.rounds, ROUNDS)):
        plan = federation.varied_plan(clip_norm, index)
        report, _, handed, released = federation.play(plan)
        if report.refused.any():
            break
        attack.look(index, plan, report, handed, released)
    found = dict(attack.found)
    refused = _overspend(config, clip_norm, seed)
    if not refused:
        found["overspent"] = (True, "a round is released although the budget is spent")
    kept = _deviate(config, clip_norm, seed) if config.noise_schedule == "fixed" else None
    if kept is False:
        found["deviation"] = (True, "a round is released with other noise than was fixed in advance")
    findings = tuple(Finding("charges", topic, leak, text) for topic, (leak, text) in found.items())
    return Charges(len(attack.noise), tuple(attack.noise), attack.certified, refused, kept, findings)


class _Attack:
    """Books of a federation under attack, looked at after every round."""

    def __init__(self, federation: StagedFederation):
        self._federation = federation
        self.noise: list[Measurement] = []
        self.certified = math.inf
        self.found: dict[str, tuple[bool, str]] = {}

    def look(self, index: int, plan: RoundPlan, report: RoundReport, handed: Cohorts, released: RoundRelease) -> None:
        """Compare a round with its charge."""
        federation, books = self._federation, self._federation.charging.books[0]
        if federation.paid != index + 1:
            self.found["late"] = (True, f"clients train in round {index} before it is charged")
        if federation.release_count > 1:
            self.found["twice"] = (True, f"{federation.release_count} sums are released under one charge")
        for ledger in {id(one): one for one in (books.budget, books.ledger)}.values():
            charge = ledger.charges[-1] if ledger.charges else None
            if charge is None or charge.round != index or len(ledger.charges) != index + 1:
                self.found["uncharged"] = (True, f"round {index} is released without a charge of its own")
                return
            self._entries(charge, report)
            self._rate(ledger, charge)
        self._amounts(index, plan, handed, released)

    def _entries(self, charge: Charge, report: RoundReport) -> None:
        """Compare what was charged with what was told."""
        names = [one.name for one in charge.releases]
        missing = ({UPDATE} | set(accounted(report))) - set(names)
        if missing:
            self.found["entries"] = (True, f"released, but not charged: {', '.join(sorted(missing))}")
        if len(names) != len(set(names)):
            self.found["entries"] = (True, "a release is charged twice in a round")
        joint = 1 / math.sqrt(math.fsum(one.noise_multiplier**-2 for one in charge.releases))
        if charge.noise_multiplier > joint * (1 + _CLOSE):
            text = f"the releases of a round hide as much as noise of {joint:.4g} does, but count as one of"
            self.found["joint"] = (True, f"{text} {charge.noise_multiplier:.4g}")

    def _rate(self, ledger: Ledger, charge: Charge) -> None:
        """Compare the sampling rate of the books with that of the settings."""
        config = self._federation.config
        told = min(ledger.sampling_rate, charge.sampling_rate)
        secret = config.sampling == "poisson" and config.placement != "local"
        least = config.sampling_rate if secret else 1.0
        if told < least * (1 - _CLOSE):
            self.found["rate"] = (True, f"the books count with a sampling rate of {told:g}, where it is {least:g}")

    def _amounts(self, index: int, plan: RoundPlan, handed: Cohorts, released: RoundRelease) -> None:
        """Compare the noise of the update with its charges, by the budget's and by the certifying ledger."""
        federation, config = self._federation, self._federation.config
        books, clip = federation.charging.books[0], float(plan.clip_norm[0])
        pattern = noise_there(federation, handed)[0] / (handed.clip[0] * handed.noise_multiplier[0])
        there = received(federation, handed)[0] & (pattern > 0)
        if not bool(there.any()):
            return
        noise = (released.total[0][there] / (clip * pattern[there])).to(torch.float64)  # claimed std σ
        told = _update(books.budget.charges[-1])
        error = ERROR / max(1, min(config.rounds, ROUNDS))
        estimate = spread_interval(float((noise / told).square().sum()), len(noise), error)
        self.noise.append(estimate)
        if estimate.high < 1:
            text = f"round {index} has {estimate.value:.3g} of the noise that its charge says"
            self.found["little"] = (True, text)
        if estimate.low > 1:
            self.found.setdefault("much", (False, f"round {index} has {estimate.value:.3g} times the noise charged"))
        real = certified_multiplier(federation, handed)
        certified = _update(books.ledger.charges[-1]) / told  # over the claimed multiplier, as `real` is
        self.certified = min(self.certified, real / certified)
        if certified > real * (1 + 1e-3):
            text = f"the ledger certifies {certified:.3g} of the claimed noise multiplier, where the noise on the least"
            self.found["certified"] = (True, f"{text} protected client is worth {real:.3g}")


def _update(charge: Charge) -> float:
    return next((one.noise_multiplier for one in charge.releases if one.name == UPDATE), math.inf)


def _overspend(config: FederationConfig, clip_norm: float, seed: int) -> bool:
    """Spend everything and ask for another round: True if that one is refused and nothing comes of it."""
    federation = StagedFederation(replace(config, rounds=config.rounds + 1), audit_seeds(seed, 1))
    plan = RoundPlan.constant(1, clip_norm)
    if config.noise_schedule == "fixed":
        charging = federation.charging
        charging.books = [Charging.prepare(config, federation.recipe, config.epsilon)]
        for index in range(config.rounds):
            charging.charge(plan, np.ones(1, dtype=bool), np.full(1, index), lambda row: 1.0)
        federation.rounds[:] = config.rounds
    else:
        federation.run_round(replace(plan, budget_share=np.ones(1)))
    before = _tensors(federation)
    report = federation.run_round(plan)
    return bool(report.refused.all()) and _tensors(federation) == before


def _deviate(config: FederationConfig, clip_norm: float, seed: int) -> bool:
    """Ask for a round of other noise than was planned: True if that is refused and nothing comes of it."""
    federation = StagedFederation(config, audit_seeds(seed, 1))
    before = _tensors(federation)
    try:
        federation.run_round(replace(RoundPlan.constant(1, clip_norm), budget_share=np.ones(1)))
    except InputError:
        return not federation.charging.books[0].ledger.charges and _tensors(federation) == before
    return False


def _tensors(federation: StagedFederation) -> dict[str, bytes]:
    """Return the content of every tensor that the next round would start from, by name."""
    tensors: dict[str, torch.Tensor] = federation.state_dict()["tensors"]
    return {name: value.cpu().numpy().tobytes() for name, value in tensors.items()}
