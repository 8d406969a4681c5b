"""What each round of each run may spend: asked of its ledger before any data is touched.

Under `sound` a run has one ledger, which gives out the noise and cannot be overspent. Under `as-published` a *claim*
gives out the noise as the paper's accounting does, and the ledger, without a limit, records what the noise that is
really there certifies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_core.config import FederationConfig
from fl_core.privacy import accounting
from fl_core.privacy.ledger import BudgetExhausted, Ledger, Release, split_noise_multiplier
from fl_core.recipes.mechanism import RISK_SHARE
from fl_core.recipes.recipe import Recipe
from fl_core.rounds import LEAST_SHARE, BoolArray, FloatArray, RoundPlan

UPDATE, CLIP_BIT, RISK = "update", "clip-bit", "risk"
RELEASES = (UPDATE, CLIP_BIT, RISK)


class Charging:
    """The budgets of a batch of runs.

    Attributes:
        ledgers: per run, what is certified.
        claims: per run, what the paper claims; None under `sound`.
    """

    def __init__(self, config: FederationConfig, recipe: Recipe, runs: int):
        """Open the books of runs that spend the configuration's ε."""
        self._config, self._recipe = config, recipe
        opened = [self.prepare(config.epsilon) for _ in range(runs)]
        self.ledgers: list[Ledger] = [ledger for ledger, _ in opened]
        self.claims: list[Ledger | None] = [claim for _, claim in opened]

    def prepare(self, epsilon: float) -> tuple[Ledger, Ledger | None]:
        """Books of a run with this budget."""
        config = self._config
        size = (config.delta, config.accounting_rate, config.rounds)
        if config.guarantee == "sound" or not self._recipe.private:
            return Ledger(epsilon, *size), None
        return Ledger(math.inf, *size), Ledger(epsilon, *size, claim=True)

    def open(self, row: int, prepared: tuple[Ledger, Ledger | None]) -> None:
        """Put a run on these books."""
        self.ledgers[row], self.claims[row] = prepared

    @property
    def budgets(self) -> list[Ledger]:
        """Per run, what gives out the noise: the claim, or the ledger itself."""
        return [claim or ledger for ledger, claim in zip(self.ledgers, self.claims, strict=True)]

    def charge(
        self, plan: RoundPlan, wanted: BoolArray, rounds: np.ndarray, effective: Callable[[int], float]
    ) -> tuple[dict[str, FloatArray], BoolArray]:
        """Ask for a round of each wanted run.

        Args:
            plan: the controllers' decisions.
            wanted: runs that are to run `[runs]`.
            rounds: rounds done by each `[runs]`.
            effective: of a run, the factor by which the noise that is really there falls short of the claim.

        Returns:
            Noise multipliers `[runs]` by release (the clip bit only where it is bought), and the runs that were refused
            `[runs]`.
        """
        runs = len(wanted)
        buys_bit = self._config.telemetry_share > 0 or "telemetry_share" in plan.settings
        noise = {name: np.zeros(runs) for name in RELEASES if name != CLIP_BIT or buys_bit}
        refused = np.zeros(runs, dtype=bool)
        if not self._recipe.private:
            return noise, refused
        for row in np.flatnonzero(wanted):
            try:
                multipliers = self._charge_run(int(row), plan, int(rounds[row]), effective)
            except BudgetExhausted:
                refused[row] = True
                continue
            for name, value in multipliers.items():
                noise[name][row] = value
        return noise, refused

    def _charge_run(
        self, row: int, plan: RoundPlan, round_index: int, effective: Callable[[int], float]
    ) -> dict[str, float]:
        budget = self.budgets[row]
        share = self._budget_share(plan, row, round_index)
        joint = budget.uniform_noise_multiplier if share is None else budget.noise_multiplier_for_share(share)
        multipliers = split_noise_multiplier(joint, self._shares(plan, row))
        budget.charge(round_index, [Release(name, value) for name, value in multipliers.items()])
        if self.claims[row] is not None:
            factor = effective(row)
            real = {name: value * factor if name == UPDATE else value for name, value in multipliers.items()}
            self.ledgers[row].charge(round_index, [Release(name, value) for name, value in real.items()])
        return multipliers

    def _budget_share(self, plan: RoundPlan, row: int, round_index: int) -> float | None:
        """Share of what is left that the controller, else the method, gives this round; None for the uniform one."""
        if plan.budget_share is not None:
            return float(plan.budget_share[row])
        left = max(1, self._config.rounds - round_index)
        if "budget_pace" in plan.settings:
            return min(1.0, max(LEAST_SHARE, float(plan.settings["budget_pace"][row]) / left))
        if math.isinf(self.budgets[row].epsilon):
            return None
        return self._recipe.mechanism.budget_share(round_index, self._config.rounds)

    def _shares(self, plan: RoundPlan, row: int) -> dict[str, float]:
        """How the round's privacy is split over its releases."""
        telemetry = self._config.telemetry_share
        if "telemetry_share" in plan.settings:
            telemetry = float(plan.settings["telemetry_share"][row])
        mechanism = self._recipe.mechanism
        risk = RISK_SHARE if mechanism.uses_risk and not mechanism.exact_risk else 0.0
        shares = {UPDATE: (1 - telemetry) * (1 - risk), CLIP_BIT: telemetry * (1 - risk), RISK: risk}
        return {name: share for name, share in shares.items() if share > 0}

    def figures(self) -> dict[str, FloatArray]:
        """What is spent and left, per run `[runs]`."""
        runs = len(self.ledgers)
        budgets = self.budgets
        spent = np.array([budget.epsilon_spent() for budget in budgets])
        if self._recipe.exchanges and not self._recipe.private:
            spent = np.full(runs, np.inf)
        left = [
            max(0.0, budget.epsilon - value) if value < np.inf else budget.epsilon
            for budget, value in zip(budgets, spent, strict=True)
        ]
        figures = {
            "epsilon_spent": spent,
            "epsilon_left": np.array(left),
            "budget_left": np.array([budget.remaining_share for budget in budgets]),
        }
        if any(claim is not None for claim in self.claims):
            figures["epsilon_of_updates"] = np.array([self.certified(row) for row in range(runs)])
        return figures

    def certified(self, row: int, uploads: float = 1.0, delta: float | None = None) -> float:
        """ε that a run's noised updates certify for noise fixed in advance, by exact or Rényi accounting.

        Args:
            row: the run.
            uploads: factor on every noise multiplier, 1/√m for whoever sees single uploads of m clients.
            delta: δ; None takes the run's.
        """
        ledger = self.ledgers[row]
        segments = [(sigma * uploads, rate, steps) for sigma, rate, steps in ledger.segments()]
        accountant = "gdp" if ledger.sampling_rate == 1 else "rdp"
        return accounting.epsilon(segments, ledger.delta if delta is None else delta, accountant)

    def state_dict(self) -> dict[str, Any]:
        """Books as plain JSON values."""
        return {
            "ledgers": [ledger.state_dict() for ledger in self.ledgers],
            "claims": [None if claim is None else claim.state_dict() for claim in self.claims],
        }
