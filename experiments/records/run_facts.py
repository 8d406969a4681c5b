"""Facts of a run that its ledgers do not hold, and that its ε depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiments.records.shown import not_covered
from fl_core.base.bounds import Bounds, check_numbers, count
from fl_core.base.errors import require, require_name
from fl_core.base.fields import check_types
from fl_core.privacy.noise_model import DRAWERS
from fl_core.privacy.releases import SIGNAL_CLASSES
from fl_core.run.choices import CHOICES
from fl_core.run.ranges import BOUNDS, SEED


@dataclass(frozen=True)
class RunFacts:
    """Facts of a run that its ledgers do not hold.

    Attributes:
        task, method, controller, seed, guarantee, clients, sampling, sampling_rate, placement: as it was set up.
        cohort: expected clients per round.
        rounds: rounds planned.
        rounds_done: rounds that ran.
        exchanges, private: whether anything leaves the clients, and whether it is clipped and noised.
        diverged: whether the run stopped because its model, or an action of its controller, was no longer finite.
        knobs: what the controller set.
        signals: what the controller read, and the class of each.
        adaptive: whether the controller chose the noise from what was released. Clip norms do not count: the noise
            scales with them, and its multiplier stays what the schedule says.
        uncovered: what was given away without noise.
        population: whose data the clients hold.
        tuning: what training and tuning the controller took, in words; "" for none.
        noise_drawn_by: one of `DRAWERS`; "" in records from before this was written down.
        shown: metrics that were written though they are exact figures of the clients.
        cohorts: sizes of the sampled cohorts that came, where uploads carry shares of the noise; () elsewhere.
        noise: one of `NOISES`.
        cohorts_by_seed: False where cohorts are drawn from the operating system's randomness, as in a federation that
            is none of ours to simulate.
    """

    task: str
    method: str
    controller: str
    seed: int
    guarantee: str
    clients: int
    cohort: float
    sampling: str
    sampling_rate: float
    placement: str
    rounds: int
    rounds_done: int
    exchanges: bool
    private: bool
    diverged: bool
    knobs: tuple[str, ...]
    signals: Mapping[str, str]
    adaptive: bool
    uncovered: tuple[str, ...]
    population: str = "all"
    tuning: str = ""
    noise_drawn_by: str = ""
    shown: tuple[str, ...] = ()
    cohorts: tuple[float, ...] = ()
    noise: str = "seeded"
    cohorts_by_seed: bool = True

    def check(self, where: str) -> None:
        """Refuse facts of other types, names that are unknown, and numbers out of range.

        Raises:
            InputError: names `where`.
        """
        check_types(self, where)
        check_numbers(self, _BOUNDS, f"{where}: ")
        for name in ("guarantee", "sampling", "placement", "population", "noise"):
            require_name(f"{where}: {name}", getattr(self, name), CHOICES[name])
        require_name(f"{where}: noise_drawn_by", self.noise_drawn_by, ("", *DRAWERS))
        for kind in self.signals.values():
            require_name(f"{where}: class of a signal", kind, SIGNAL_CLASSES)
        sizes = all(0 <= size <= self.clients for size in self.cohorts)
        require(sizes, f"{where}: cohorts holds sizes beyond the {self.clients} clients.")

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Disclosures that no ε covers, in words."""
        return not_covered(self.uncovered, self.shown)

    @property
    def clients_add_noise(self) -> bool:
        """True if single uploads carry noise."""
        if not self.noise_drawn_by:
            return self.private and (self.placement != "central" or self.guarantee == "as-published")
        return self.noise_drawn_by == "clients"

    @property
    def noise_in_advance(self) -> bool:
        """True if noise and length of the run were fixed in advance, so that PLD and Rényi DP values of ε hold."""
        return not self.adaptive and not self.diverged


_BOUNDS: Mapping[str, Bounds] = {
    "seed": SEED,
    "clients": BOUNDS["clients"],
    "rounds": BOUNDS["rounds"],
    "sampling_rate": BOUNDS["sampling_rate"],
    "rounds_done": count(0, 1_000_000),
    "cohort": Bounds(0, 1e6),
}
