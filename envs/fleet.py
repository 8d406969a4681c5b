"""Federations of different shapes as one batch: every row is in one of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fl_core.base.errors import require
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import BoolArray, FloatArray, RoundPlan, RoundReport


class Fleet:
    """Federations that share the method and the guarantee.

    Attributes:
        members: one federation per shape, each with a place for every row.
        homes: the member that each row is in `[runs]`.
    """

    def __init__(self, config: FederationConfig, runs: int, shapes: Sequence[Mapping[str, Any]] = ({},)):
        """Build a federation of `runs` rows for every shape, a set of replaced settings.

        Raises:
            InputError: a setting is not allowed, or the shapes' classes differ in number.
        """
        self.members = [Federation(replace(config, **shape) if shape else config, runs) for shape in shapes]
        self.homes = np.zeros(runs, dtype=np.int64)
        classes = sorted({member.model.classes for member in self.members})
        require(len(classes) == 1, f"generator mixes datasets of {' and '.join(map(str, classes))} classes.")

    def of(self, row: int) -> Federation:
        """Return the federation that a row is in."""
        return self.members[int(self.homes[row])]

    def prepare(self, rows: Sequence[int], settings: Sequence[RunSettings], homes: Sequence[int]) -> Callable[[], None]:
        """Make budgets and data of new runs, in the members at the places `homes`; what is returned begins them.

        Raises:
            InputError: as `Federation.prepare`.
        """
        parts = []
        for place, member in enumerate(self.members):
            chosen = [index for index, home in enumerate(homes) if home == place]
            if chosen:
                own_rows, own = [rows[index] for index in chosen], [settings[index] for index in chosen]
                parts.append((member, own_rows, own, member.prepare(own_rows, own)))

        def begin() -> None:
            for member, own_rows, own, prepared in parts:
                member.begin(own_rows, own, prepared)
            self.homes[list(rows)] = homes

        return begin

    def per_row(self, read: Callable[[Federation], Any]) -> np.ndarray:
        """Read an array `[runs, ...]` from every member, and take each row from the member that it is in."""
        found = [np.asarray(read(member)) for member in self.members]
        if len(found) == 1:
            return found[0]
        return np.stack([found[home][row] for row, home in enumerate(self.homes)])

    @property
    def rounds(self) -> np.ndarray:
        """Rounds done by each run `[runs]`."""
        return self.per_row(lambda member: member.rounds)

    @property
    def lengths(self) -> np.ndarray:
        """Rounds T of each run `[runs]`."""
        return self.per_row(lambda member: np.full(len(self.homes), member.config.rounds))

    @property
    def over(self) -> BoolArray:
        """Runs that can do no further round `[runs]`: all are done, or the budget is spent."""
        return self.per_row(lambda member: member.done | member.charging.exhausted)

    @property
    def noise_multipliers(self) -> FloatArray:
        """Noise multiplier of the uniform schedule `[runs]`."""
        return self.per_row(lambda member: [one.uniform_noise_multiplier for one in member.charging.budgets])

    def run_round(self, plan: RoundPlan, active: BoolArray, evaluate: bool = False) -> RoundReport:
        """Run one round of the active rows `[runs]`, each in its own member."""
        going = [active & (self.homes == place) for place in range(len(self.members))]
        reports = [
            member.run_round(plan, rows, evaluate)
            for member, rows in zip(self.members, going, strict=True)
            if rows.any() or len(self.members) == 1
        ]
        return reports[0] if len(reports) == 1 else _merged(reports)

    def evaluate(self) -> dict[str, FloatArray]:
        """Measure accuracy and loss of all runs: figure -> values `[runs]`."""
        here = sorted(set(self.homes.tolist()))
        found = {place: self.members[place].evaluate() for place in here}
        if len(found) == 1:
            return found[here[0]]
        names = found[here[0]]
        return {
            name: np.array([found[home][name][row] for row, home in enumerate(self.homes.tolist())]) for name in names
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all members, in the form of `Federation.state_dict`."""
        states = [member.state_dict() for member in self.members]
        if len(states) == 1:
            return states[0]
        tensors = {f"{place}.{name}": one for place, s in enumerate(states) for name, one in s["tensors"].items()}
        return {"tensors": tensors, "plain": {"members": [s["plain"] for s in states], "homes": self.homes.tolist()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken.

        Raises:
            InputError: as `Federation.load_state_dict`, or the state is of other shapes.
        """
        if len(self.members) == 1:
            self.members[0].load_state_dict(state)
            return
        found = len(state["plain"].get("members", [0]))
        require(
            found == len(self.members),
            f"The saved state is of {found} shape{'s' if found > 1 else ''} of instances, but here are "
            f"{len(self.members)}.",
        )
        for place, (member, plain) in enumerate(zip(self.members, state["plain"]["members"], strict=True)):
            start = f"{place}."
            own = {n.removeprefix(start): one for n, one in state["tensors"].items() if n.startswith(start)}
            member.load_state_dict({"tensors": own, "plain": plain})
        self.homes = np.array(state["plain"]["homes"], dtype=np.int64)


def _merged(reports: Sequence[RoundReport]) -> RoundReport:
    """One report of rounds in which different rows took part; the figures of each row are those of its own round."""
    names = dict.fromkeys(name for report in reports for name in report.figures)
    ran = np.logical_or.reduce([report.ran for report in reports])
    figures = {}
    for name in names:
        figures[name] = np.full(len(ran), np.nan)
        for report in reports:
            if name in report.figures:
                figures[name] = np.where(report.ran, report.figures[name], figures[name])
    return RoundReport(figures, ran, np.logical_or.reduce([report.refused for report in reports]))
