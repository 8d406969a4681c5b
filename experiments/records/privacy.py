"""Privacy report of a run: ε spent or claimed, certified, against single uploads, and disclosures without noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envs import EnvCore
from experiments.records.ledger_file import RunRecord, record_of, sets_noise
from experiments.records.run_facts import RunFacts
from experiments.records.shown import not_covered
from fl_core.base.files import spelled_out
from fl_core.privacy.ledger import NOTHING
from fl_core.privacy.mechanism import PLACEMENTS
from fl_core.run.basis import basis_text
from fl_core.run.choices import NOISES

SMALL_DELTA = 1e-5
NOT_COVERED = "shown, not covered"
"""Name of the list of everything that is shown and that epsilon does not cover."""


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy of one run.

    Attributes:
        guarantee: `sound` or `as-published`.
        target: ε asked for.
        delta: δ.
        spent: how far the budget is spent, as the ε of the rounds done had just these been fixed in advance; by the
            ledger where sound, by the paper's accounting where as published. Not what is certified.
        odometer: ε of the rounds done that holds whenever and why ever the run stopped; infinite as published.
        accountant: how `spent` was counted.
        certified: ε that holds for everything the run gave away: the target, or less where noise and end were fixed in
            advance; None where something is uncovered.
        updates_only: ε that the noise on the updates certifies, whatever else is uncovered.
        uploads_view: for `distributed` noise, ε against a server that sees single uploads, of a client that takes part
            in every round, with the shares of the cohorts that came; None elsewhere.
        at_small_delta: `updates_only` at δ = 1e-5, where the run's δ is above that and promises little; else None.
        uncovered: what the run gives away without noise.
        shown: exact metrics of the clients that are written beside it.
        noise: where the noise comes from, in words; "" where there is none.
        adaptive: whether the controller chose the noise from what was released.
        exact: whether figures by any accountant hold: noise and end of the run were fixed in advance.
        validity: the same in words.
        basis: what ε rests on: unit, adjacency, observer and amplification.
        uploads_basis: the same of `uploads_view`.
    """

    guarantee: str
    target: float
    delta: float
    spent: float
    odometer: float
    accountant: str
    certified: float | None
    updates_only: float
    uploads_view: float | None
    at_small_delta: float | None
    uncovered: tuple[str, ...]
    shown: tuple[str, ...]
    noise: str
    adaptive: bool
    exact: bool
    validity: str
    basis: str
    uploads_basis: str

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, infinities and NaN as text."""
        values: dict[str, Any] = spelled_out(asdict(self))
        return values

    def lines(self) -> list[str]:
        """Format the report as the lines that `dpilot run` prints."""
        lines = self._epsilons()
        lines.append((NOT_COVERED, "; ".join(not_covered(self.uncovered, self.shown)) or "nothing"))
        if self.noise:
            lines.append(("noise", self.noise))
        return layout([*lines, ("holds for", self.basis), ("adaptive", self.validity), *self.views()])

    def _epsilons(self) -> list[tuple[str, str]]:
        """Format certified and claimed ε as rows of name and text."""
        at = f"of {self.target:g} at delta {self.delta:g} ({self.accountant})"
        certified = "none" if self.certified is None else f"{self.certified:.4g}"
        if self.guarantee == "sound":
            return [("epsilon", f"{certified} certified, {self.spent:.4g} spent {at}{self._so_far()}")]
        return [
            ("claimed epsilon", f"{self.spent:.4g} {at}"),
            ("certified epsilon", f"{certified} (the noise on the updates alone: {self.updates_only:.4g})"),
        ]

    def _so_far(self) -> str:
        """Format the odometer if it reads less than the target, else ""."""
        return f"; odometer {self.odometer:.4g}" if 0 < self.odometer < self.target else ""

    def views(self) -> list[tuple[str, str]]:
        """Format the ε at a smaller δ, and against an observer of single uploads, as rows of name and text."""
        lines, kind = [], "" if self.exact else ", indicative only"
        if self.at_small_delta is not None:
            lines.append((f"at delta {SMALL_DELTA:g}", f"{self.at_small_delta:.4g} by the noise on the updates{kind}"))
        if self.uploads_view is not None:
            lines.append(("single uploads", f"{self.uploads_view:.4g}{kind}; {self.uploads_basis}"))
        return lines


def layout(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Align names and texts in two columns."""
    return [f"{name:<18} {text}" for name, text in lines]


def privacy_report(core: EnvCore, row: int, reads: Sequence[str] | None = None, show: str = "all") -> PrivacyReport:
    """Build the privacy report of a run as it stands; `reads` and `show` as in `facts_of`."""
    return report_of(record_of(core, row, reads=reads, show=show))


def report_of(record: RunRecord) -> PrivacyReport:
    """Build the privacy report from a run's ledgers and facts."""
    facts, ledger, budget = record.facts, record.ledger, record.budget
    charged, published = bool(ledger.charges), facts.guarantee == "as-published"
    exact = facts.noise_in_advance and _ended_as_planned(record)
    spent = budget.epsilon_spent()
    if facts.exchanges and not facts.private:
        spent = math.inf if facts.rounds_done else 0.0
    certified = spent if exact or math.isinf(spent) else budget.certified
    updates = ledger.epsilon_of_noise() if published and facts.private else certified
    uploads = None
    if facts.clients_add_noise and facts.placement != "local" and charged and math.isfinite(updates):
        uploads = ledger.epsilon_of_uploads(_cohorts(record))
    small = None
    if charged and ledger.delta > SMALL_DELTA and math.isfinite(updates):
        small = ledger.epsilon_of_noise(delta=SMALL_DELTA)
    return PrivacyReport(
        guarantee=facts.guarantee,
        target=budget.epsilon,
        delta=ledger.delta,
        spent=spent,
        odometer=math.inf if published or not facts.private else budget.odometer(),
        accountant=budget.accountant,
        certified=None if facts.uncovered or (published and not exact) else updates,
        updates_only=updates,
        uploads_view=uploads,
        at_small_delta=small,
        uncovered=facts.uncovered,
        shown=facts.shown,
        noise=noise_text(record),
        adaptive=facts.adaptive,
        exact=exact,
        validity=validity(record),
        basis=basis_text(ledger.adjacency, facts.placement, ledger.sampling_rate),
        uploads_basis="" if uploads is None else basis_text(ledger.adjacency, facts.placement, uploads=True),
    )


def _ended_as_planned(record: RunRecord) -> bool:
    """Return True if the run did all its rounds or spent its budget."""
    return record.facts.rounds_done == record.facts.rounds or record.budget.remaining_share < NOTHING


def _cohorts(record: RunRecord) -> list[float]:
    """Return the cohort of every charge; one whose size is not on record may have been everybody."""
    facts = record.facts
    varies = facts.sampling == "poisson" and facts.sampling_rate < 1
    largest = facts.clients if varies else max(1.0, facts.cohort)
    return [
        facts.cohorts[charge.round] if charge.round < len(facts.cohorts) else largest
        for charge in record.ledger.charges
    ]


_COHORTS = {
    True: "cohorts follow from the seed, so amplification by sampling counts only against those without it",
    False: "whoever trains draws the cohorts, and amplification by sampling counts only against those who do not learn "
    "them",
}
"""What amplification rests on, by whether cohorts follow from the seed."""


# --- Texts that every report shares -------------------------------------------------------------------------------


def validity(record: RunRecord) -> str:
    """State whether the run was adaptive and which values of ε hold for it, in one sentence."""
    facts = record.facts
    if facts.adaptive:
        answer = "yes, the controller chose the noise from what was released"
    elif facts.diverged:
        answer = "yes, what was released ended the run"
    elif sets_noise(facts.knobs, facts.guarantee):
        answer = "no, the controller chose the noise by the round alone"
    else:
        answer = "no, the noise multipliers were fixed in advance"
    if facts.noise_in_advance and _ended_as_planned(record):
        return f"{answer}: figures by any accountant hold"
    return f"{answer}: the target holds, and the odometer, but not what was spent"


def sampling_text(record: RunRecord) -> str:
    """State how cohorts are drawn and whether amplification by sampling is counted, in words."""
    facts = record.facts
    rate, clients = facts.sampling_rate, facts.clients
    if rate == 1 and facts.sampling == "poisson":
        return f"all {clients} clients in every round"
    if facts.sampling == "fixed":
        return f"{facts.cohort:g} of {clients} clients in every round, without replacement; no amplification is counted"
    text = f"Poisson, each of {clients} clients with probability {rate:g} in every round"
    if record.ledger.sampling_rate < 1:
        return f"{text}; its amplification is counted"
    if facts.placement == "local":
        return f"{text}; no amplification is counted, since uploads are seen"
    return f"{text}; no amplification is counted for {record.ledger.adjacency}: as if each took part in every round"


def placement_text(facts: RunFacts) -> str:
    """State the placement of the noise and the observers that it holds against, in words."""
    return f"{facts.placement}: {PLACEMENTS[facts.placement]}"


def noise_text(record: RunRecord) -> str:
    """State the source of the noise and who could subtract it, in words; "" if there is none."""
    facts = record.facts
    if not facts.private:
        return ""
    text = f"{facts.noise}: {NOISES[facts.noise]}"
    if facts.noise == "secret" and record.ledger.sampling_rate < 1:
        text += f"; {_COHORTS[facts.cohorts_by_seed]}"
    return text
