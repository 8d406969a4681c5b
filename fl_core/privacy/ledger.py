"""The ledger: every release of a run is charged here before it happens, and the budget cannot be overspent.

Where noise may depend on everything released so far (a controller chooses it), composition is fully adaptive, and what
stops it is one of the privacy filters of `fl_core.privacy.filters`; where it is fixed in advance, a plan.

The certified ε is the target, even if a run stops with budget left: stopping may depend on the releases. The odometer
bounds the ε of the releases so far.

Gaussian mechanism, the unit is one client, neighbours as the ledger's adjacency says, Poisson sampling at rate q, σ =
noise std over the most that one client adds to the sum.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from fl_core.base.arguments import checked
from fl_core.base.bounds import is_number
from fl_core.base.errors import require, require_count, require_name
from fl_core.base.exact_sum import ExactSum
from fl_core.base.files import spelled_out
from fl_core.privacy import accounting
from fl_core.privacy.accounting import Segment
from fl_core.privacy.adjacency import ADJACENCIES
from fl_core.privacy.curves import (
    gdp_epsilon,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_sampling_rate,
)
from fl_core.privacy.filters import claim_for, filter_for, plan_for
from fl_core.privacy.ledger_state import SavedCharges, refused_if_damaged, sound_charges
from fl_core.privacy.odometer import PlannedOdometer, mixture_odometer
from fl_core.privacy.releases import SIGNAL_CLASSES, BudgetExhausted, Charge, Release

_ROUND_UP = 1e-6
"""Part by which every σ handed out is raised: above rounding errors and above what the grid of a privacy loss
distribution adds to ε (2e-7 of it), so that a spent budget is within the target by that reckoning too."""
NOTHING = 1e-4
"""Part of the budget below which a share of it is refused: rounding up leaves up to some 1e-5 behind."""


class Ledger:
    """The privacy budget (ε, δ) of one run and everything charged to it.

    Examples:
        >>> ledger = Ledger(epsilon=8.0, delta=1e-5, sampling_rate=1.0, rounds=2)
        >>> sigma = ledger.uniform_noise_multiplier
        >>> for index in range(2):
        ...     charge = ledger.charge(index, [Release("update", sigma)])
        >>> round(sigma, 3), round(ledger.epsilon_spent(), 3), ledger.certified
        (0.849, 8.0, 8.0)
        >>> ledger.charge(2, [Release("update", sigma)])
        Traceback (most recent call last):
        fl_core.privacy.releases.BudgetExhausted: ...

    Args:
        epsilon: ε > 0; infinity means no limit: no noise is asked for and nothing is refused.
        delta: δ in (0, 1).
        sampling_rate: Poisson sampling rate q in (0, 1] of every round; 1 for a fixed cohort, which amplifies nothing.
        rounds: rounds of the uniform schedule, which fixes α*. More rounds may be charged while the budget lasts.
        claim: True to count as the papers do (Opacus' Rényi orders) instead of by the filter.
        adjacency: relation between neighbouring federations, one of `ADJACENCIES`; at a sampling rate below 1 not
            replace-one, for which no amplification is counted.
        adaptive: True if noise may depend on earlier releases. Otherwise every round has the noise of the uniform
            schedule and there are no more than `rounds`, which takes less noise at q < 1; anything else is refused.

    Raises:
        InputError: a value out of range, or an ε too small for the filter.

    """

    @checked
    def __init__(
        self,
        epsilon: float,
        delta: float,
        sampling_rate: float,
        rounds: int,
        claim: bool = False,
        adjacency: str = "add-remove",
        adaptive: bool = True,
    ) -> None:
        require_epsilon(epsilon)
        require_delta(delta)
        require_sampling_rate(sampling_rate)
        require_count("rounds", rounds)
        self.epsilon, self.delta = float(epsilon), float(delta)
        self.sampling_rate, self.rounds = float(sampling_rate), rounds
        require_name("adjacency", adjacency, ADJACENCIES)
        self.claim, self.adjacency, self.adaptive = claim, adjacency, adaptive
        self.sensitivity = ADJACENCIES[adjacency].sensitivity
        require(
            self.sensitivity == 1 or sampling_rate == 1,
            f"adjacency is {adjacency}, for which no amplification is counted, but sampling_rate is {sampling_rate}.",
        )
        make_filter = claim_for if claim else filter_for if adaptive else plan_for
        self._filter = make_filter(self.epsilon, self.delta, self.sampling_rate, rounds)
        self._charges: list[Charge] = []
        self._costs: list[float] = []
        self._spent = ExactSum()  # of the costs
        self._saved = SavedCharges()

    @property
    def accountant(self) -> str:
        """Name of the stopping rule that certifies the budget, for reports."""
        return self._filter.name

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges, in order."""
        return tuple(self._charges)

    @property
    def last_charge(self) -> Charge | None:
        """The latest charge; None before the first."""
        return self._charges[-1] if self._charges else None

    @property
    def rows(self) -> list[list[Any]]:
        """All charges as JSON values, as `Charge.as_row`; copy them before changing any."""
        return list(self._saved.rows)

    @cached_property
    def uniform_noise_multiplier(self) -> float:
        """σ with which `rounds` equal charges spend the whole budget, rounded up by about 1e-6 so that all of them fit.

        If the ledger is not adaptive, it is the σ of every round.
        """
        return self._noise_multiplier(self._filter.budget / self.rounds)

    @checked
    def noise_multiplier_for_share(self, share: float) -> float:
        """Compute the σ of a round that spends a share of the remaining budget, rounded up by about 1e-6.

        The budget is in the filter's unit, μ² at q = 1 and Rényi DP below. σ is infinite for a share whose cost
        underflows.

        Raises:
            InputError: the share is outside (0, 1] or NaN.
            BudgetExhausted: less than 1e-4 of the budget is left.
        """
        require(is_number(share) and 0 < share <= 1, f"share is {share}, but it must be above 0 and at most 1.")
        require(
            self.adaptive,
            f"share is {share}, but this ledger's noise was fixed in advance: {self.uniform_noise_multiplier:.6g}.",
        )
        if self.remaining_share < NOTHING:
            raise BudgetExhausted(f"Nothing is left of the privacy budget {self._budget_text()}.")
        return self._noise_multiplier(float(share) * self._remaining())

    @checked
    def can_afford(self, releases: Sequence[Release]) -> bool:
        """Return True if `charge` would accept these releases as the next round's.

        Raises:
            InputError: as `charge`.
        """
        return self._fits(self._cost(self._join(releases)))

    @checked
    def charge(self, round_index: int, releases: Sequence[Release]) -> Charge:
        """Charge all releases about one round's cohort. Call it before any client's data is touched.

        Args:
            round_index: index of the round, above that of the last charge.
            releases: every noised quantity that the round releases.

        Raises:
            BudgetExhausted: the budget would be exceeded; the ledger is unchanged.
            InputError: no release, a noise multiplier that is not above 0 or not the planned one, a round charged
                before; also unchanged.
        """
        require_count("round", round_index, least=0)
        last = self._charges[-1].round if self._charges else -1
        require(round_index > last, f"round is {round_index}, but rounds up to {last} are already charged.")
        joint = self._join(releases)
        cost = self._cost(joint)
        if not self._fits(cost):
            raise BudgetExhausted(
                f"Round {round_index} needs {cost / self._filter.budget:.3%} of the privacy budget "
                f"{self._budget_text()}, but only {self.remaining_share:.3%} is left."
            )
        charge = Charge(round_index, tuple(releases), joint, self.sampling_rate)
        self._charges.append(charge)
        self._costs.append(cost)
        self._spent.add(cost)
        self._saved.add(charge)
        return charge

    @property
    def remaining_share(self) -> float:
        """Share of the budget that is left, in the filter's unit; 1 at the start."""
        return 1.0 if math.isinf(self._filter.budget) else max(0.0, self._remaining()) / self._filter.budget

    @property
    def certified(self) -> float:
        """ε that holds for all releases, whenever and for whatever reason the run stops: the target; 0 if uncharged.

        Infinite for ε = ∞ as soon as something is released with finite noise.
        """
        return self.epsilon if any(cost > 0 for cost in self._costs) else 0.0

    def epsilon_spent(self) -> float:
        """Compute the ε of the charges so far as if they had been fixed in advance; never above the target.

        It measures progress and certifies nothing: `certified` and `odometer` do.
        """
        return self._filter.epsilon(self._spent.value())

    def odometer(self) -> float:
        """Compute the ε of all releases so far, valid at all times simultaneously and for noise chosen adaptively.

        It holds at this δ also for a run that was stopped because of what it released. Spent to the end it reads
        some 10 % more than the target, which holds besides.
        """
        if not self.certified:
            return 0.0
        if self.claim or math.isinf(self.epsilon):
            return math.inf
        if not self.adaptive and self.sampling_rate < 1:
            plan = PlannedOdometer(self.delta, self.uniform_noise_multiplier, self.sampling_rate, self.rounds)
            return plan.reading(len(self._charges))
        sigma = self.uniform_noise_multiplier / self.sensitivity
        return mixture_odometer(self.delta, self.sampling_rate, sigma, self.rounds).reading(self.segments())

    def epsilon_after_rounds(self) -> list[float]:
        """Return `epsilon_spent` after each charge."""
        return [self._filter.epsilon(spent) for spent in itertools.accumulate(self._costs)]

    @checked
    def epsilon_by(self, accountant: str = "pld") -> float:
        """Compute the ε of the charges by another accountant, for reports.

        At q < 1 it holds only if the noise was fixed in advance or depended on public state alone.
        """
        return accounting.epsilon(self.segments(), self.delta, accountant)

    @checked
    def epsilon_of_noise(self, delta: float | None = None) -> float:
        """Compute the ε that the charges certify for noise fixed in advance: exact at q = 1, by Rényi DP below.

        Args:
            delta: δ; None takes the ledger's.
        """
        accountant = "gdp" if self.sampling_rate == 1 else "rdp"
        return accounting.epsilon(self.segments(), self.delta if delta is None else delta, accountant)

    @checked
    def epsilon_of_uploads(self, cohorts: Sequence[float]) -> float:
        """Compute the ε of a client's uploads, if it takes part in every round, against an observer of each of them.

        An upload carries the share σ/√m of the noise of its cohort of m. The observer sees who takes part, so that
        nothing is amplified by sampling.

        Args:
            cohorts: m of every charge, in order.
        """
        charges = len(self._charges)
        require(len(cohorts) == charges, f"cohorts has {len(cohorts)} sizes, but there are {charges} charges.")
        squares = [
            size * (self.sensitivity / charge.noise_multiplier) ** 2 if charge.noise_multiplier else math.inf
            for charge, size in zip(self._charges, cohorts, strict=True)
        ]
        return gdp_epsilon(math.sqrt(math.fsum(squares)), self.delta)

    def epsilon_of_noise_after_rounds(self) -> list[float]:
        """Compute `epsilon_of_noise` after each charge, to within 1e-10."""
        return accounting.epsilon_after_steps(
            [charge.noise_multiplier / self.sensitivity for charge in self._charges], self.sampling_rate, self.delta
        )

    def segments(self) -> list[Segment]:
        """Return the charges as a history for `accounting.epsilon`: (σ, q, rounds) for each σ.

        σ is relative to the distance between neighbours: under replace-one, half of the charged one.
        """
        counts = Counter(charge.noise_multiplier for charge in self._charges)
        return [(sigma / self.sensitivity, self.sampling_rate, steps) for sigma, steps in counts.items()]

    @checked
    def renewed(self, epsilon: float | None = None) -> Ledger:
        """Return a ledger with the same settings and no charges; `epsilon` replaces the target, None keeps it."""
        target = self.epsilon if epsilon is None else epsilon
        size = (target, self.delta, self.sampling_rate, self.rounds)
        return Ledger(*size, self.claim, self.adjacency, self.adaptive)

    def state_dict(self) -> dict[str, Any]:
        """Return settings and charges as plain JSON values, with a SHA-256 digest that detects edits.

        The rows of charges are the ledger's own: copy them before changing any.
        """
        return self._saved.state(self._settings())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the charges by those of a `state_dict` of a ledger with the same settings.

        Raises:
            InputError: the state was edited or damaged, or belongs to another budget; this ledger is unchanged.
        """
        with refused_if_damaged():
            fresh = self.renewed()
            for index, releases in sound_charges(state, fresh._settings()):
                fresh.charge(index, [Release(name, float(sigma), kind) for name, sigma, kind in releases])
        self._charges, self._costs, self._spent, self._saved = fresh._charges, fresh._costs, fresh._spent, fresh._saved

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ledger:
        """Restore a ledger from its `state_dict`.

        Raises:
            InputError: the state was edited or damaged.
        """
        with refused_if_damaged():
            size = (float(state["epsilon"]), state["delta"], state["sampling_rate"], state["rounds"], state["claim"])
            ledger = cls(*size, state.get("adjacency", "add-remove"), state.get("adaptive", True))
        ledger.load_state_dict(state)
        return ledger

    def _cost(self, joint: float) -> float:
        """Compute the cost of a round with this joint σ; raise `InputError` if it is not the σ fixed in advance."""
        if not self.adaptive:
            planned = self.uniform_noise_multiplier
            require(
                math.isclose(joint, planned, rel_tol=1e-9) or math.isinf(self.epsilon),
                f"noise_multiplier is {joint:.9g}, but this ledger's noise was fixed in advance: {planned:.9g}.",
            )
        return self._filter.cost(joint / self.sensitivity)

    def _budget_text(self) -> str:
        """Write the budget with what its ε rests on, for messages."""
        kind = "a claim as published, which certifies nothing, " if self.claim else ""
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:g} ({kind}unit one client, {self.adjacency}, counted by "
            f"{self.accountant})"
        )

    def _fits(self, cost: float) -> bool:
        """Return True if this cost is left, and, if noise was fixed in advance, a round as well."""
        planned = self.adaptive or math.isinf(self.epsilon) or len(self._charges) < self.rounds
        return planned and self._remaining(cost) >= 0

    def _remaining(self, cost: float = 0.0) -> float:
        """Subtract all costs from the budget, rounded once, so that the sign, hence a refusal, is exact."""
        return math.inf if math.isinf(self._filter.budget) else self._spent.subtracted_from(self._filter.budget, -cost)

    def _noise_multiplier(self, cost: float) -> float:
        """Compute the least σ that costs at most this, rounded up."""
        if math.isinf(cost):
            return 0.0
        sigma, step = self._filter.noise_multiplier(cost) * (1 + _ROUND_UP), _ROUND_UP
        while self._filter.cost(sigma) > cost:
            sigma *= 1 + step
            step *= 2
        return sigma * self.sensitivity

    def _join(self, releases: Sequence[Release]) -> float:
        require(len(releases) > 0, "releases is empty, but a round that is charged must release something.")
        for release in releases:
            require(isinstance(release.name, str), f"The name of a release is {release.name!r}, but it must be text.")
            require_noise_multiplier(release.noise_multiplier, zero_allowed=math.isinf(self.epsilon))
            require_name("signal_class", release.signal_class, SIGNAL_CLASSES)
        return accounting.joint_noise_multiplier(float(release.noise_multiplier) for release in releases)

    def _settings(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {
            "epsilon": spelled_out(float(self.epsilon)),
            "delta": self.delta,
            "sampling_rate": self.sampling_rate,
            "rounds": self.rounds,
            "claim": self.claim,
            "adjacency": self.adjacency,
            "adaptive": self.adaptive,
        }
