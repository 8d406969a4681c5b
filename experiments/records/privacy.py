"""What a run's epsilon is worth: spent or claimed, certified, seen in single uploads, and what no noise covers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envs import EnvCore
from experiments.records.ledger_file import RunFacts, RunRecord, record_of, sets_noise
from experiments.records.shown import not_covered
from fl_core.base.files import spelled_out
from fl_core.privacy.mechanism import PLACEMENTS

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
        spent: ε of the rounds done, by the ledger where sound, by the paper's accounting where as published.
        accountant: how `spent` was counted.
        certified: ε that holds for everything the run gave away; None where something is uncovered.
        updates_only: ε that the noise on the updates certifies, whatever else is uncovered.
        uploads_view: for `distributed` noise, ε against a server that sees single uploads; None elsewhere.
        at_small_delta: `updates_only` at δ = 1e-5, where the run's δ is above that and promises little; else None.
        uncovered: what the run gives away without noise.
        shown: exact metrics of the clients that are written beside it.
        adaptive: whether the controller chose the noise from what was released.
        exact: whether figures by other accountants than the filter hold: the noise was fixed in advance, or q = 1.
        validity: the same in words.
    """

    guarantee: str
    target: float
    delta: float
    spent: float
    accountant: str
    certified: float | None
    updates_only: float
    uploads_view: float | None
    at_small_delta: float | None
    uncovered: tuple[str, ...]
    shown: tuple[str, ...]
    adaptive: bool
    exact: bool
    validity: str

    def as_json(self) -> dict[str, Any]:
        """JSON-able values; what is not finite is spelled out."""
        values: dict[str, Any] = spelled_out(asdict(self))
        return values

    def lines(self) -> list[str]:
        """What `dpilot run` prints."""
        lines = self._epsilons()
        lines.append((NOT_COVERED, "; ".join(not_covered(self.uncovered, self.shown)) or "nothing"))
        return layout([*lines, ("adaptive", self.validity), *self.views()])

    def _epsilons(self) -> list[tuple[str, str]]:
        """Certified and claimed ε, kept apart."""
        at = f"of {self.target:g} at delta {self.delta:g} ({self.accountant})"
        if self.guarantee == "sound":
            return [("epsilon", f"{self.spent:.4g} spent {at}")]
        certified = "none" if self.certified is None else f"{self.certified:.4g}"
        return [
            ("claimed epsilon", f"{self.spent:.4g} {at}"),
            ("certified epsilon", f"{certified} (the noise on the updates alone: {self.updates_only:.4g})"),
        ]

    def views(self) -> list[tuple[str, str]]:
        """ε at another δ and against another adversary."""
        lines, kind = [], "" if self.exact else ", indicative only"
        if self.at_small_delta is not None:
            lines.append((f"at delta {SMALL_DELTA:g}", f"{self.at_small_delta:.4g} by the noise on the updates{kind}"))
        if self.uploads_view is not None:
            text = f"{self.uploads_view:.4g} against a server that sees them one by one{kind}"
            lines.append(("single uploads", text))
        return lines


def layout(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Names and values in two columns."""
    return [f"{name:<18} {text}" for name, text in lines]


def privacy_report(core: EnvCore, row: int, reads: Sequence[str] | None = None, show: str = "all") -> PrivacyReport:
    """The privacy of a run as it stands; `reads` and `show` as in `facts_of`."""
    return report_of(record_of(core, row, reads=reads, show=show))


def report_of(record: RunRecord) -> PrivacyReport:
    """What a run's books are worth."""
    facts, ledger, budget = record.facts, record.ledger, record.budget
    charged, published = bool(ledger.charges), facts.guarantee == "as-published"
    exact = facts.noise_in_advance or ledger.sampling_rate == 1
    spent = budget.epsilon_spent()
    if facts.exchanges and not facts.private:
        spent = math.inf if facts.rounds_done else 0.0
    updates = ledger.epsilon_of_noise() if published and facts.private else spent
    uploads = None
    if facts.clients_add_noise and facts.placement != "local" and charged and math.isfinite(updates):
        uploads = ledger.epsilon_of_noise(1 / math.sqrt(max(1.0, facts.cohort)))
    small = None
    if charged and ledger.delta > SMALL_DELTA and math.isfinite(updates):
        small = ledger.epsilon_of_noise(delta=SMALL_DELTA)
    return PrivacyReport(
        guarantee=facts.guarantee,
        target=budget.epsilon,
        delta=ledger.delta,
        spent=spent,
        accountant=budget.accountant,
        certified=None if facts.uncovered or (published and not exact) else updates,
        updates_only=updates,
        uploads_view=uploads,
        at_small_delta=small,
        uncovered=facts.uncovered,
        shown=facts.shown,
        adaptive=facts.adaptive,
        exact=exact,
        validity=validity(record),
    )


# --- Texts that every report shares -------------------------------------------------------------------------------

UNIT = "one client with all its data; neighbours differ by adding or removing a client"


def validity(record: RunRecord) -> str:
    """Whether the run was adaptive, and which figures hold for it."""
    facts = record.facts
    if facts.adaptive:
        answer = "yes, the controller chose the noise from what was released"
    elif facts.diverged:
        answer = "yes, what was released ended the run"
    elif sets_noise(facts.knobs, facts.guarantee):
        answer = "no, the controller chose the noise by the round alone"
    else:
        answer = "no, the noise multipliers were fixed in advance"
    if record.ledger.sampling_rate == 1:
        return f"{answer}; at sampling rate 1 the figures hold either way"
    if facts.noise_in_advance:
        return f"{answer}: figures by PLD and RDP hold too"
    return f"{answer}: only the filter's figure holds"


def sampling_text(facts: RunFacts) -> str:
    """How cohorts are drawn, and whether that is counted."""
    rate, clients = facts.sampling_rate, facts.clients
    if rate == 1 and facts.sampling == "poisson":
        return f"all {clients} clients in every round"
    if facts.sampling == "fixed":
        return f"{facts.cohort:g} of {clients} clients in every round, without replacement; no amplification is counted"
    text = f"Poisson, each of {clients} clients with probability {rate:g} in every round"
    return f"{text}; no amplification is counted, since uploads are seen" if facts.placement == "local" else text


def placement_text(facts: RunFacts) -> str:
    """Who adds the noise, and against whom it holds."""
    return f"{facts.placement}: {PLACEMENTS[facts.placement]}"
