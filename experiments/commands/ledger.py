"""`dpilot ledger`: the privacy of a run, for a reviewer: what was released, what it cost, and which ε holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from experiments.options.ledger import LedgerOptions
from experiments.records.ledger_file import FILE, RunRecord, read_record
from experiments.records.privacy import (
    NOT_COVERED,
    PrivacyReport,
    noise_text,
    placement_text,
    report_of,
    sampling_text,
)
from experiments.records.run_state import RECORD as STATE
from experiments.reports.drawing import figure_png
from experiments.reports.ledger_figure import ledger_figure
from experiments.reports.tables import Table
from experiments.terminal import console
from fl_core.base.files import spelled_out, write_bytes
from fl_core.privacy.ledger import Ledger
from fl_core.run.basis import UNIT
from fl_core.run.budget import delta_warning

FIGURE = "ledger.png"


@dataclass(frozen=True)
class LedgerCommand(LedgerOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Print the report, draw the figure, and return the report."""
        self.check()
        folder = Path(self.run)
        if folder.name == FILE:
            folder = folder.parent
        record = read_record(folder)
        shown = console(100)
        print_report(record, shown, self.accountants)
        if (folder / STATE).exists():
            shown.print(f"Not to be published: {STATE} and its tensors hold the clients' data until the run has ended.")
        if record.ledger.charges:
            write_bytes(folder / FIGURE, figure_png(ledger_figure(record), dpi=150))
            shown.print(f"Figure: {folder / FIGURE}", soft_wrap=True)
        facts = spelled_out(record.facts)
        return {
            "run": facts,
            "privacy": report_of(record).as_json(),
            "lines": dict(report_lines(record, self.accountants)),
        }


def print_report(record: RunRecord, shown: Console, accountants: tuple[str, ...] = ()) -> None:
    """Print everything that a reviewer needs in order to judge the run's ε."""
    lines, facts = list(report_lines(record, accountants)), record.facts
    done = f"{facts.rounds_done} of {facts.rounds} rounds"
    shown.print(f"{facts.controller or 'a run'} on {facts.task} with {facts.method}, seed {facts.seed}: {done}")
    grid = Grid(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, text in lines:
        grid.add_row(f"  {name}", text)
    shown.print(grid)
    if record.ledger.charges:
        shown.print(releases_table(record.ledger).terminal())


def report_lines(record: RunRecord, accountants: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """List the lines of the report as (name, text); the table of releases is not among them."""
    facts, ledger = record.facts, record.ledger
    if record.unsaved_rounds:
        yield (
            "interrupted",
            f"{record.unsaved_rounds} of these rounds are known by the journal of charges alone; all are counted, "
            "though the last may not have run",
        )
    yield "unit", UNIT
    yield "delta", delta_warning(ledger.delta, facts.clients) or f"{ledger.delta:g}"
    yield "sampling", sampling_text(record)
    if facts.private:
        yield "noise", placement_text(facts)
        yield "noise drawn", noise_text(record)
    report = report_of(record)
    yield from epsilon_lines(record, report, accountants)
    yield "adaptive", report.validity
    yield NOT_COVERED, "; ".join(facts.not_covered) or "nothing"
    yield "clients", f"{facts.clients:,}, population {facts.population}"
    if facts.tuning:
        yield "tuned on", facts.tuning
    yield "controller set", ", ".join(facts.knobs) or "nothing"
    yield "controller saw", ", ".join(f"{name} ({kind})" for name, kind in facts.signals.items()) or "nothing"


def epsilon_lines(
    record: RunRecord, report: PrivacyReport, accountants: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """List certified, indicative and claimed ε as (name, text), each with what it rests on."""
    facts, ledger, claim = record.facts, record.ledger, record.claim
    if not facts.exchanges:
        yield "certified", "0: nothing leaves the clients"
        return
    if claim is not None:
        yield (
            "claimed",
            f"{claim.epsilon_spent():.4g} of {claim.epsilon:g} by the paper's accounting ({claim.accountant})",
        )
        certified = "none" if report.certified is None else f"{report.certified:.4g}"
        yield "certified", f"{certified}; the noise on the updates alone: {report.updates_only:.4g}"
    elif not math.isfinite(report.spent):
        yield "certified", "none: nothing limits what was released"
        return
    else:
        rest = "" if report.certified is not None else "none, for what is uncovered; by the noise alone "
        how = "chosen adaptively" if ledger.adaptive else "fixed in advance"
        yield "certified", f"{rest}{report.updates_only:.4g} ({ledger.accountant}), for noise {how}"
        yield (
            "spent",
            f"{report.spent:.4g} of {report.target:g}, which is no claim where the run was stopped early",
        )
        yield "odometer", f"{report.odometer:.4g}, for whoever stopped here for whatever reason"
    yield "holds for", report.basis
    chosen = accountants or (("pld", "rdp") if ledger.sampling_rate < 1 else ())
    if ledger.charges and chosen:
        figures = ", ".join(f"{ledger.epsilon_by(name):.4g} by {name.upper()}" for name in chosen)
        yield "indicative", f"{figures}, for noise fixed in advance"
    yield from report.views()
    budgets = record.books.clients
    if budgets:
        spent = ", ".join(f"{one.epsilon_spent():.4g} of {one.epsilon:g}" for one in budgets)
        yield "clients' own", f"{spent}; a client whose budget is spent takes no further part"


def releases_table(ledger: Ledger) -> Table:
    """Tabulate every kind of release: its class, rounds and range of noise; in the last row the rounds' joint noise."""
    kinds: dict[tuple[str, str], list[float]] = {}
    for charge in ledger.charges:
        for release in charge.releases:
            kinds.setdefault((release.name, release.signal_class), []).append(release.noise_multiplier)
    rows = [(name, kind, str(len(values)), span(values)) for (name, kind), values in kinds.items()]
    joint = [charge.noise_multiplier for charge in ledger.charges]
    rows.append(("a round's together", "", str(len(joint)), span(joint)))
    return Table(
        ("release", "class", "rounds", "noise multiplier"),
        tuple(rows),
        words=("class",),
        title="Releases, charged before any data was touched",
    )


def span(values: list[float]) -> str:
    """Write the range of some numbers, or the one number that all of them are."""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"
