"""Budget schedules: division of the privacy budget over the rounds, fixed before the run.

Each gives the share w_t of the remaining budget that round t spends, in the unit in which charges add up (μ² at
sampling rate 1, Rényi DP at the filter's order below). Of the whole budget that is w_t·Π_{s<t}(1 − w_s).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from typing_extensions import override

from fl_core.base.arrays import FloatArray
from fl_core.base.errors import require
from fl_core.base.libraries import numpy as np
from fl_core.base.libraries import optimize
from fl_core.recipes.mechanism import exponential_pace
from policies.base import Controller
from policies.parameters import ANY, SHARE, Parameter
from policies.view import Seen, View

KNOB = "budget_pace"
RATIOS = (0.1, 0.25, 0.5, 2.0, 4.0)
_SLACK = 1e-9


class BudgetSchedule(Controller):
    """Sets the budget's pace as a function of the round alone; the clip norm stays at the task's default."""

    needed_knobs = KNOB

    def __init__(self, view: View, values: Mapping[str, float]):
        """Compute the pace of every decision.

        Raises:
            InputError: as in `Controller`, or a decision would need a pace outside the knob's range.
        """
        super().__init__(view, values)
        self._paces = self._held_paces()

    @abstractmethod
    def shares(self, rounds: int) -> FloatArray:
        """Compute the share of the rest that each of T rounds spends `[rounds]`, in [0, 1]; 1 in one round or more."""

    @override
    def decide(self, seen: Seen) -> dict[str, FloatArray]:
        decision = np.minimum(seen.round // self.view.decision_rounds, len(self._paces) - 1)
        return {KNOB: self._paces[decision]}

    def _held_paces(self) -> FloatArray:
        """Compute each decision's pace, such that its rounds leave of the budget what the schedule leaves there."""
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
    """Solve Π_{j<rounds} (1 − pace/(left − j)) = kept for the pace that is held for some rounds.

    Args:
        kept: part of the budget that is kept, in [0, 1].
        left: rounds left of the run, counted from the first of these on.
        rounds: number of rounds that it is held for, at most `left`.
    """
    most = float(left - rounds + 1)  # takes all that the last of them finds
    if kept <= 0:
        return most
    if rounds == 1:
        return (1 - kept) * left
    after = left - np.arange(rounds)
    # The product falls from 1 at pace 0 to 0 at `most`, monotonically, so the bracket holds the only root.
    root = optimize.brentq(lambda pace: float(np.prod(1 - pace / after)) - kept, 0.0, most, xtol=1e-14, rtol=1e-14)
    return float(root)


def shares_of(weights: FloatArray) -> FloatArray:
    """Convert the rounds' budgets, in proportion to weights `[rounds]`, to shares of the rest `[rounds]`."""
    return np.asarray(weights / np.cumsum(weights[::-1])[::-1], dtype=np.float64)


class UniformBudget(BudgetSchedule):
    """Spends the same in every round."""

    name = "budget-uniform"
    summary = "privacy budget: the same in every round"
    label_format = "uniform budget"

    @override
    def shares(self, rounds: int) -> FloatArray:
        return shares_of(np.ones(rounds))


_BETA = (
    Parameter("beta", "growth β; below 0 the budget falls", 2.0, allowed=ANY, search=(0.25, 0.5, 1.0, 2.0, 3.0, 4.0)),
)


class ExponentialBudget(BudgetSchedule):
    """Spends exp(−BETA(1 − (t/T)²)) of an equal share of the rest (ADP-PFL eq. 10 and 11, such that eq. 9 holds).

    A BETA below 0 spends more than an equal share at first, so that the budget falls and eq. 9 does not hold.
    """

    name = "budget-exponential"
    summary = "privacy budget: exp(-BETA(1 - (t/T)^2)) of an equal share of the rest: grows (ADP-PFL), or falls"
    parameters = _BETA
    label_format = "exponential budget (beta {beta:.3g})"
    printed = False

    @override
    def shares(self, rounds: int) -> FloatArray:
        paces = [exponential_pace(t, rounds, self.values["beta"], self.printed) for t in range(1, rounds + 1)]
        return np.minimum(1.0, np.array(paces) / np.arange(rounds, 0, -1))


class PrintedBudget(ExponentialBudget):
    """Spends t times as much, as eq. 11 is printed: the budget ends before the last round, and the run with it."""

    name = "budget-printed"
    summary = "privacy budget: the same times t, as ADP-PFL prints it; all is spent early, which ends the run"
    label_format = "budget as ADP-PFL prints it (beta {beta:.3g})"
    printed = True


class LinearBudget(BudgetSchedule):
    """Spends in proportion to RATIO at the first round, 1 at the last, and linearly between them."""

    name = "budget-linear"
    summary = "privacy budget: linear, the first round's RATIO times the last one's"
    parameters = (Parameter("ratio", "budget of the first round over that of the last", 0.25, search=RATIOS),)
    label_format = "linear budget (first/last {ratio:.3g})"

    @override
    def shares(self, rounds: int) -> FloatArray:
        return shares_of(np.linspace(self.values["ratio"], 1.0, rounds))


class StepBudget(BudgetSchedule):
    """Spends in proportion to RATIO in the first AT of the rounds (rounded, at least one), to 1 in the others."""

    name = "budget-step"
    summary = "privacy budget: a round of the first AT of the run gets RATIO times one of the rest"
    parameters = (
        Parameter("ratio", "budget of an early round over that of a late one", 0.25, search=RATIOS),
        Parameter("at", "where the step is, as a part of the run", 0.5, allowed=SHARE, search=(0.25, 0.5, 0.75)),
    )
    label_format = "step budget (ratio {ratio:.3g} up to {at:.3g})"

    @override
    def shares(self, rounds: int) -> FloatArray:
        early = max(1, round(self.values["at"] * rounds))
        return shares_of(np.where(np.arange(rounds) < early, self.values["ratio"], 1.0))
