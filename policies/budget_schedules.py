"""Budget schedules: how the rounds share the privacy budget, fixed before the run.

Each says what share w_t of the budget that is left round t spends, in the unit in which charges add up (μ² at sampling
rate 1, Rényi DP at the filter's order below). Of the whole budget that is w_t·Π_{s<t}(1 − w_s).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from scipy import optimize

from fl_core.base.errors import require
from fl_core.recipes.mechanism import exponential_pace
from policies.base import Controller
from policies.parameters import SHARE, Parameter
from policies.view import FloatArray, Seen, View

KNOB = "budget_pace"
RATIOS = (0.1, 0.25, 0.5, 2.0, 4.0)
_SLACK = 1e-9


class BudgetSchedule(Controller):
    """Sets the budget's pace as a function of the round alone; the clip norm stays at the task's default."""

    needed_knobs = KNOB

    def __init__(self, view: View, values: Mapping[str, float]):
        """Work out the pace of every decision.

        Raises:
            InputError: as in `Controller`, or a decision would need a pace outside the knob's range.
        """
        super().__init__(view, values)
        self._paces = self._held_paces()

    @abstractmethod
    def shares(self, rounds: int) -> FloatArray:
        """Share of what is left that each of T rounds spends `[rounds]`, in [0, 1]; 1 in one round or more."""

    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        """As in `Controller`."""
        decision = np.minimum(seen.round // self.view.decision_rounds, len(self._paces) - 1)
        return {KNOB: self._paces[decision]}

    def _held_paces(self) -> FloatArray:
        """Pace of each decision: such that what is left after its rounds is what the schedule leaves there."""
        view, knob = self.view, self.view.knob(KNOB)
        assert knob is not None
        left = np.concatenate([[1.0], np.cumprod(1 - np.clip(self.shares(view.rounds), 0.0, 1.0))])
        paces = []
        for first in range(0, view.rounds, view.decision_rounds):
            rounds = min(view.decision_rounds, view.rounds - first)
            kept = left[first + rounds] / left[first] if left[first] > 0 else 0.0
            pace = held_pace(float(kept), view.rounds - first, rounds)
            require(
                knob.low * (1 - _SLACK) <= pace <= knob.high * (1 + _SLACK),
                f"controller '{self.spec}' needs {KNOB} {pace:.3g} in round {first + 1} of {view.rounds}, but it must "
                f"be in [{knob.low:g}, {knob.high:g}].",
            )
            paces.append(pace)
        return np.array(paces)

    @property
    def spec(self) -> str:
        """Name and parameters as they are typed."""
        return ":".join([self.name, *(f"{value:g}" for value in self.values.values())])


def held_pace(kept: float, left: int, rounds: int) -> float:
    """The pace that, held for some rounds, keeps a part of the budget: Π_{j<rounds} (1 − pace/(left − j)) = kept.

    Args:
        kept: that part, in [0, 1].
        left: rounds left of the run, from the first of these on.
        rounds: how many it is held for, at most `left`.
    """
    most = float(left - rounds + 1)  # takes all that the last of them finds
    if kept <= 0:
        return most
    if rounds == 1:
        return (1 - kept) * left
    after = left - np.arange(rounds)
    root = optimize.brentq(lambda pace: float(np.prod(1 - pace / after)) - kept, 0.0, most, xtol=1e-14, rtol=1e-14)
    return float(root)


def shares_of(weights: FloatArray) -> FloatArray:
    """Shares of what is left, where the rounds' budgets are in proportion to these weights `[rounds]`."""
    return np.asarray(weights / np.cumsum(weights[::-1])[::-1], dtype=np.float64)


class UniformBudget(BudgetSchedule):
    """Every round spends the same."""

    name = "budget-uniform"
    summary = "privacy budget: the same in every round"
    label_format = "uniform budget"

    def shares(self, rounds: int) -> FloatArray:
        """As in the base class."""
        return shares_of(np.ones(rounds))


_BETA = (Parameter("beta", "growth β", 2.0, search=(0.25, 0.5, 1.0, 2.0, 3.0, 4.0)),)


class ExponentialBudget(BudgetSchedule):
    """exp(−BETA(1 − (t/T)²)) of an equal share of what is left (ADP-PFL, eq. 10 and 11, read so that eq. 9 holds)."""

    name = "budget-exponential"
    summary = "privacy budget: grows to the end, exp(-BETA(1 - (t/T)^2)) of an equal share of what is left (ADP-PFL)"
    parameters = _BETA
    label_format = "exponential budget (beta {beta:.3g})"
    printed = False

    def shares(self, rounds: int) -> FloatArray:
        """As in the base class."""
        paces = [exponential_pace(t, rounds, self.values["beta"], self.printed) for t in range(1, rounds + 1)]
        return np.minimum(1.0, np.array(paces) / np.arange(rounds, 0, -1))


class PrintedBudget(ExponentialBudget):
    """The same times t, as eq. 11 is printed: all is spent before the last round, and the run ends there."""

    name = "budget-printed"
    summary = "privacy budget: the same times t, as ADP-PFL prints it; all is spent early, which ends the run"
    label_format = "budget as ADP-PFL prints it (beta {beta:.3g})"
    printed = True


class LinearBudget(BudgetSchedule):
    """In proportion to RATIO at the first round, 1 at the last, and linear between them."""

    name = "budget-linear"
    summary = "privacy budget: linear, the first round's RATIO times the last one's"
    parameters = (Parameter("ratio", "budget of the first round over that of the last", 0.25, search=RATIOS),)
    label_format = "linear budget (first/last {ratio:.3g})"

    def shares(self, rounds: int) -> FloatArray:
        """As in the base class."""
        return shares_of(np.linspace(self.values["ratio"], 1.0, rounds))


class StepBudget(BudgetSchedule):
    """In proportion to RATIO in the first AT of the rounds (rounded, at least one), to 1 in the others."""

    name = "budget-step"
    summary = "privacy budget: a round of the first AT of the run gets RATIO times one of the rest"
    parameters = (
        Parameter("ratio", "budget of an early round over that of a late one", 0.25, search=RATIOS),
        Parameter("at", "where the step is, as a part of the run", 0.5, allowed=SHARE, search=(0.25, 0.5, 0.75)),
    )
    label_format = "step budget (ratio {ratio:.3g} up to {at:.3g})"

    def shares(self, rounds: int) -> FloatArray:
        """As in the base class."""
        early = max(1, round(self.values["at"] * rounds))
        return shares_of(np.where(np.arange(rounds) < early, self.values["ratio"], 1.0))
