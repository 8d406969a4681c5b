"""Charging: asks the ledger of every run for the noise multipliers of its next round, before any data is touched.

Under `sound` a run has one ledger, which gives out the noise and cannot be overspent. Under `as-published` a *claim*
gives out the noise as the paper's accounting does, and the ledger, without a limit, records what the noise that is
really there certifies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fl_core.base.errors import require
from fl_core.privacy.ledger import NOTHING, Ledger
from fl_core.privacy.releases import BudgetExhausted, Charge, Release
from fl_core.privacy.splits import split_noise_multiplier, update_noise_multiplier
from fl_core.privacy.telemetry import CLIP_BIT, parse_telemetry
from fl_core.recipes.recipe import Recipe
from fl_core.run.config import FederationConfig
from fl_core.run.plan import LEAST_SHARE, BoolArray, FloatArray, RoundPlan

UPDATE, RISK = "update", "risk"
OnCharge = Callable[[int, Mapping[str, Charge]], None]
"""Callback for a run's row and the charges of its next round by ledger name (see `Books.by_name`)."""
MOST_BIT_SHARE = 0.5
"""The most of a round's privacy that a clip bit with noise of its own takes, in rounds noisier than planned."""


@dataclass(frozen=True)
class Books:
    """Ledgers of one run.

    Attributes:
        ledger: counts the certified ε.
        claim: counts the ε that the paper claims; None under `sound`.
        clients: a ledger for each entry of `client_epsilon`; once it refuses a round, its clients take part no more.
        lasting: for each ledger of `clients` the factor in (0, 1] on C with which its budget lasts for all rounds: on
            an update clipped to factor·C, noise of multiplier σ counts as σ/factor.
    """

    ledger: Ledger
    claim: Ledger | None = None
    clients: tuple[Ledger, ...] = ()
    lasting: tuple[float, ...] = ()

    @property
    def budget(self) -> Ledger:
        """Ledger that sets the noise multipliers: the claim if there is one, else the certifying ledger."""
        return self.claim or self.ledger

    def by_name(self) -> dict[str, Ledger]:
        """Return every ledger by the name that a journal of charges gives it."""
        named = {"ledger": self.ledger} | ({} if self.claim is None else {"claim": self.claim})
        return named | {f"client budget {place}": one for place, one in enumerate(self.clients)}

    def in_use(self, ledger: Ledger) -> bool:
        """Return True if this ledger of `clients` has been charged for every round so far."""
        return len(ledger.charges) == len(self.ledger.charges)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ledgers as plain JSON values."""
        return {
            "ledger": self.ledger.state_dict(),
            "claim": None if self.claim is None else self.claim.state_dict(),
            "clients": [one.state_dict() for one in self.clients],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of books with the same budgets.

        Raises:
            InputError: the state was edited or damaged, or belongs to other budgets.
        """
        found, own = len(state["clients"]), len(self.clients)
        require(found == own, f"The saved state holds {found} client budgets, but this run has {own}.")
        self.ledger.load_state_dict(state["ledger"])
        if self.claim is not None:
            self.claim.load_state_dict(state["claim"])
        for ledger, saved in zip(self.clients, state["clients"], strict=True):
            ledger.load_state_dict(saved)


class Charging:
    """Budgets of a batch of runs.

    Attributes:
        books: ledgers of each run.
        on_charge: called when a round is charged and before it runs, as by a journal on disk; a round whose charge it
            refuses by an error does not run, but stays charged.
    """

    def __init__(self, config: FederationConfig, recipe: Recipe, books: Sequence[Books]):
        """Charge these books, one per run and as made by `prepare`."""
        self._config, self._recipe = config, recipe
        self._telemetry = parse_telemetry(config.telemetry)
        top = max((knob.high for knob in recipe.knobs if knob.name == "budget_pace"), default=math.inf)
        self._top_pace = top * (1 - 1e-9)  # spends all that is left, however many rounds there are
        self.books = list(books)
        self.on_charge: OnCharge | None = None

    @staticmethod
    def prepare(config: FederationConfig, recipe: Recipe, epsilon: float) -> Books:
        """Make the books of a run with budget ε; client budgets scale by ε over the configuration's.

        Raises:
            InputError: a budget is too small to be certified, or the clip bit's noise is too small for the round's.
        """
        size = (config.delta, config.accounting_rate, config.rounds)
        adjacency, adaptive = config.neighbours, config.noise_schedule != "fixed"
        if not recipe.private:
            return Books(Ledger(epsilon, *size, adjacency=adjacency))
        if config.guarantee == "sound":
            ledger = Ledger(epsilon, *size, adjacency=adjacency, adaptive=adaptive)
            scales = (one / config.epsilon for one in config.client_budgets)
            clients = tuple(ledger.renewed(epsilon * scale) for scale in scales)
            uniform = ledger.uniform_noise_multiplier
            lasting = tuple(min(1.0, uniform / one.uniform_noise_multiplier) for one in clients)
            books = Books(ledger, clients=clients, lasting=lasting)
        else:
            books = Books(Ledger(math.inf, *size, adjacency=adjacency), Ledger(epsilon, *size, claim=True))
        if config.bit_noise > 0:
            update_noise_multiplier(books.budget.uniform_noise_multiplier, config.bit_noise)
        return books

    @property
    def ledgers(self) -> list[Ledger]:
        """Certifying ledger of each run."""
        return [one.ledger for one in self.books]

    @property
    def claims(self) -> list[Ledger | None]:
        """Ledger of each run that counts the paper's claim; None under `sound`."""
        return [one.claim for one in self.books]

    @property
    def budgets(self) -> list[Ledger]:
        """Ledger of each run that sets its noise multipliers."""
        return [one.budget for one in self.books]

    @property
    def exhausted(self) -> BoolArray:
        """Runs that can pay for no further round `[runs]`: less is left than `NOTHING` and half an equal share."""
        least = min(NOTHING, 0.5 / self._config.rounds)
        return np.array([budget.remaining_share < least for budget in self.budgets])

    def noise_at(self, row: int) -> Callable[[float | None], float]:
        """Return the uniform noise multiplier of a run as a function of ε (None: its own)."""
        return partial(self._noise_at, row)  # no closure, as environments and controllers are pickled

    def _noise_at(self, row: int, epsilon: float | None) -> float:
        budget = self.budgets[row]
        return (budget if epsilon is None else budget.renewed(epsilon)).uniform_noise_multiplier

    def knob_defaults(self, row: int) -> dict[str, float]:
        """Return the value of every knob of a run where nobody sets it, by name."""
        own = {knob.name: knob.default for knob in self._recipe.knobs}
        return own | self._recipe.personalization.knob_defaults(self.noise_at(row), self._config.rounds)

    # ---------------------------------------------------------------- clients' own budgets

    def client_shares(self) -> FloatArray | None:
        """Return the factor on C with which each client's budget lasts for all rounds `[runs, clients]`, 0 once spent.

        None if clients have no budgets of their own.
        """
        if not self._config.client_budgets:
            return None
        dealt = np.arange(self._config.clients) % len(self._config.client_budgets)
        parts = [
            [part if books.in_use(one) else 0.0 for one, part in zip(books.clients, books.lasting, strict=True)]
            for books in self.books
        ]
        return np.array(parts)[:, dealt]

    # ---------------------------------------------------------------- a round

    def release_names(self, knobs: Collection[str]) -> tuple[str, ...]:
        """Name the noised releases of a round whose plan sets these knobs; some may have no share of the budget."""
        pays = self._config.telemetry_share > 0 or "telemetry_share" in knobs
        bit = (CLIP_BIT,) if self._config.bit_noise > 0 else ()
        return (UPDATE, RISK, *(self._telemetry if pays else bit))

    def charge(
        self, plan: RoundPlan, wanted: BoolArray, rounds: np.ndarray, effective: Callable[[int], float]
    ) -> tuple[dict[str, FloatArray], BoolArray]:
        """Charge the next round of every wanted run.

        Args:
            plan: the controllers' decisions.
            wanted: runs to be charged `[runs]`.
            rounds: rounds done by each `[runs]`.
            effective: function from a run's row to the factor on σ that the update's actual noise certifies.

        Returns:
            Noise multipliers `[runs]` by release, 0 where a run releases nothing of it; and runs that their ledger
            refused `[runs]`.
        """
        runs = len(wanted)
        noise = {name: np.zeros(runs) for name in self.release_names(plan.settings)}
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
        books, budget = self.books[row], self.books[row].budget
        share = self._budget_share(plan, row, round_index)
        joint = budget.uniform_noise_multiplier if share is None else budget.noise_multiplier_for_share(share)
        multipliers = split_noise_multiplier(joint, self._shares(plan, row, joint))
        strength = self._recipe.mechanism.client_budget_strength
        if "client_budget_strength" in plan.settings:
            strength = float(plan.settings["client_budget_strength"][row])
        own = zip(books.clients, books.lasting, strict=True)
        paying = [(one, part**strength) for one, part in own if books.in_use(one)]
        budget.charge(round_index, [Release(name, value) for name, value in multipliers.items()])
        for ledger, part in paying:  # one that cannot pay is left behind
            with suppress(BudgetExhausted):
                ledger.charge(round_index, [Release(name, value / part) for name, value in multipliers.items()])
        if books.claim is not None:
            factor = effective(row)
            real = {name: value * factor if name == UPDATE else value for name, value in multipliers.items()}
            books.ledger.charge(round_index, [Release(name, value) for name, value in real.items()])
        if self.on_charge is not None:
            latest = {name: one.last_charge for name, one in books.by_name().items()}
            self.on_charge(row, {name: one for name, one in latest.items() if one and one.round == round_index})
        return multipliers

    def _budget_share(self, plan: RoundPlan, row: int, round_index: int) -> float | None:
        """Return the share of the remaining budget for this round, from controller or method; None for equal noise."""
        if plan.budget_share is not None:
            return float(plan.budget_share[row])
        left = max(1, self._config.rounds - round_index)
        if "budget_pace" in plan.settings:
            pace = float(plan.settings["budget_pace"][row])
            return 1.0 if pace >= self._top_pace else min(1.0, max(LEAST_SHARE, pace / left))
        if math.isinf(self.budgets[row].epsilon):
            return None
        return self._recipe.mechanism.budget_share(round_index, self._config.rounds)

    def _shares(self, plan: RoundPlan, row: int, joint: float) -> dict[str, float]:
        """Return each release's share of the round's 1/σ², above 0 and summing to 1; `joint` is σ."""
        telemetry = self._config.telemetry_share
        if "telemetry_share" in plan.settings:
            telemetry = float(plan.settings["telemetry_share"][row])
        risk = self._recipe.mechanism.budgeting.charged_share
        shares = {UPDATE: (1 - telemetry) * (1 - risk), RISK: risk}
        shares |= {name: telemetry * (1 - risk) * part for name, part in self._telemetry.items()}
        if self._config.bit_noise > 0:
            bit = min(MOST_BIT_SHARE, (joint / (2 * self._config.bit_noise)) ** 2)
            others = 1 - shares.pop(CLIP_BIT)
            shares = {name: share * (1 - bit) / others for name, share in shares.items()} | {CLIP_BIT: bit}
        return {name: share for name, share in shares.items() if share > 0}

    def figures(self) -> dict[str, FloatArray]:
        """Return the metrics of the budget by name `[runs]`: ε spent and left, and the share left."""
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
        if any(one.claim is not None for one in self.books):
            figures["epsilon_of_updates"] = np.array([one.epsilon_of_noise() for one in self.ledgers])
        return figures
