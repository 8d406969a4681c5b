"""No adaptive sequence of charges overspends a Rényi filter, by Opacus and by the worst mechanism of two outcomes."""

from __future__ import annotations

import bisect
import math
import random
from functools import lru_cache

import numpy as np
import pytest

from fl_core.base.exact_sum import ExactSum
from fl_core.privacy import curves
from fl_core.privacy.filters import RenyiFilter
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.releases import BudgetExhausted, Release
from tests.fl_core.privacy.independent import (
    divergence,
    most_divergence,
    require_within_budget,
    share_of_divergence,
    worst_delta,
)

BUDGETS = [(1.0, 1e-3, 0.5, 20), (0.5, 1e-5, 0.01, 40), (2.0, 1e-5, 0.05, 200), (8.0, 1e-5, 0.1, 100)]
"""ε, δ, q, rounds."""
SEQUENCES = 100_000
MOST_REQUESTS = 16
STRANGE = (1e-300, 1e-8, 0.05, 1e6, 1e300, math.inf)


class Attacker:
    """Chooses every noise multiplier from what the ledger has charged and refused, by Opacus' costs on a grid.

    Attributes:
        sigmas: noise multipliers to choose from, in steps of 0.2 %.
        costs: share of the budget that each of them costs, by Opacus and the worst mechanism.
    """

    def __init__(self, budget: tuple[float, float, float, int]) -> None:
        epsilon, delta, rate, _ = budget
        ledger = Ledger(*budget)
        assert isinstance(ledger._filter, RenyiFilter)
        order = ledger._filter.order
        most = most_divergence(epsilon, delta, order)
        least = ledger.noise_multiplier_for_share(1.0)
        self.sigmas = (0.98 * least * 1.002 ** np.arange(900)).tolist()
        costs = [divergence(rate, sigma, order) / most for sigma in self.sigmas]
        self.costs, self._ascending = costs, costs[::-1]

    def cheapest(self, left: float) -> int:
        """Find the least noise that costs no more than this share of the budget; the most there is if none does."""
        return max(0, len(self.costs) - bisect.bisect_right(self._ascending, left)) % len(self.costs)

    def request(self, left: float, refused: int | None, chance: random.Random) -> int:
        """Choose the place on the grid of the next round's noise.

        Args:
            left: share of the budget that is left, by Opacus.
            refused: place of the noise that was refused just now; None if it was charged.
            chance: source of randomness.
        """
        if refused is not None:  # creep up to what is just affordable
            return min(refused + chance.choice((1, 1, 2, 10, 200)), len(self.sigmas) - 1)
        if chance.random() < 0.3:  # all that is left, and a little more
            return max(0, self.cheapest(left) - chance.choice((0, 1, 2)))
        return self.cheapest(left * math.exp(-4 * chance.random()))

    def play(self, ledger: Ledger, chance: random.Random) -> int:
        """Ask for rounds until the budget is spent; return the number of refusals."""
        left, refusals, refused = 1.0, 0, None
        for index in range(chance.randint(4, MOST_REQUESTS)):
            kind = chance.random()
            try:
                if kind < 0.05:
                    ledger.charge(index, [Release("update", chance.choice(STRANGE))])
                elif kind < 0.07:
                    ledger.charge(index, [Release("update", ledger.noise_multiplier_for_share(1.0))])
                    break
                else:
                    place = self.request(left, refused, chance)
                    refused = place
                    ledger.charge(index, [Release("update", self.sigmas[place])])
                    left, refused = left - self.costs[place], None
            except BudgetExhausted:
                refusals += 1
        return refusals


def attack(sequences: int) -> dict[str, float]:
    """Play adaptive sequences against ledgers and count those that spend more than the budget."""
    chance = random.Random(1207)
    attackers = [Attacker(budget) for budget in BUDGETS]
    found = {"sequences": sequences, "charges": 0, "refused": 0, "emptied": 0, "overspent": 0, "most": 0.0}
    for index in range(sequences):
        place = index % len(BUDGETS)
        ledger = Ledger(*BUDGETS[place])
        found["refused"] += attackers[place].play(ledger, chance)
        share = share_of_divergence(ledger)
        found["charges"] += len(ledger.charges)
        found["emptied"] += share > 0.99
        found["overspent"] += share > 1
        found["most"] = max(found["most"], share)
    return found


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ledger remember the cost of a noise multiplier: the same values, sooner."""
    monkeypatch.setattr(curves, "rdp_of_order", lru_cache(maxsize=2**17)(curves.rdp_of_order))


def test_the_worst_mechanism_of_two_outcomes_attains_its_delta() -> None:
    """Randomised response with loss ±1 is such a mechanism: nothing may be called worse than it than the worst."""
    p, order = math.e / (1 + math.e), 3.0
    spent = math.log(p * math.exp(order - 1) + (1 - p) * math.exp(1 - order)) / (order - 1)
    for epsilon in (0.2, 0.6, 0.9):
        assert worst_delta(epsilon, order, spent) >= (p - math.exp(epsilon) * (1 - p)) * (1 - 1e-9)


@pytest.mark.usefixtures("remembered")
def test_no_adaptive_sequence_of_charges_overspends() -> None:
    found = attack(sequences=400)
    assert found["overspent"] == 0, found
    assert 0.99999 < found["most"] <= 1  # the attack comes as near as it can
    assert found["emptied"] > 200
    assert found["refused"] > 400


@pytest.mark.parametrize(("q", "claim", "adaptive"), [(0.1, False, True), (1.0, False, True), (1.0, True, True)])
def test_the_check_fails_for_a_charge_too_many(q: float, claim: bool, adaptive: bool) -> None:
    """The planted bug: a filter that certifies less than its budget lets through."""
    ledger = Ledger(2.0, 1e-5, q, 10, claim=claim, adaptive=adaptive)
    for index in range(10):
        ledger.charge(index, [Release("update", ledger.uniform_noise_multiplier)])
    require_within_budget(ledger)
    ledger._costs.clear()
    ledger._spent = ExactSum()
    ledger.charge(10, [Release("update", 20 * ledger.uniform_noise_multiplier)])
    with pytest.raises(AssertionError):
        require_within_budget(ledger)


def test_the_check_fails_for_a_plan_with_less_noise() -> None:
    plan = Ledger(2.0, 1e-5, 0.1, 10, adaptive=False)
    for index in range(10):
        plan.charge(index, [Release("update", plan.uniform_noise_multiplier)])
    require_within_budget(plan)
    plan.epsilon *= 0.99
    with pytest.raises(AssertionError):
        require_within_budget(plan)


@pytest.mark.long
@pytest.mark.usefixtures("remembered")
def test_none_of_100000_adaptive_sequences_of_charges_overspends() -> None:
    found = attack(SEQUENCES)
    print(found)
    assert found["overspent"] == 0, found
