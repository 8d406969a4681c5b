"""`ledger.json` of a run: its books, charge by charge, with the facts that say what they are worth, sealed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envs import EnvCore
from envs.knobs import Knob
from envs.signals import Feature, is_schedule_feature
from experiments.records.charge_journal import FILE as FILE_OF_CHARGES
from experiments.records.charge_journal import describe, read_journal, require_prefix, require_same_run
from experiments.records.consistency import check_books, check_folder
from experiments.records.run_facts import RunFacts
from experiments.records.shown import Shown
from fl_core.base.arguments import checked
from fl_core.base.errors import InputError, require
from fl_core.base.fields import items, record_fields
from fl_core.base.files import spelled_out, write_json
from fl_core.base.sealed import read_sealed, sealed, understood
from fl_core.privacy.ledger import Ledger
from fl_core.privacy.releases import BudgetExhausted, Release
from fl_core.recipes.mechanism import NOISE_KNOBS
from fl_core.run.charging import Books
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation

FORMAT = 2
FILE = "ledger.json"
PROGRESS = ("rounds_done", "diverged", "shown", "cohorts")
"""Facts that change on a run's way."""
_LEGEND = "each charge is [round from 0, [[release, noise multiplier, signal class], ...]]"


def sets_noise(knobs: Sequence[str], guarantee: str) -> bool:
    """Return True if one of these knobs sets the noise multiplier."""
    return any(knob in NOISE_KNOBS[guarantee] for knob in knobs)


def facts_of(
    core: EnvCore,
    row: int,
    controller: str = "",
    reads: Sequence[str] | None = None,
    tuning: str = "",
    show: str = "all",
) -> RunFacts:
    """Collect the facts of a run as it stands.

    Args:
        core: the environment.
        row: which of its runs.
        controller: its spec.
        reads: features that the controller depends on; None takes all that it is shown.
        tuning: what training and tuning the controller took, in words.
        show: which metrics of its rounds are written, one of `SHOWS`.
    """
    config = core.federation.config
    facts = facts_of_federation(core.federation, row, core.task.name)
    facts = under_control(facts, core.knobs, core.features, controller, reads, tuning)
    shares = facts.clients_add_noise and config.cohort_varies
    return replace(
        facts,
        diverged=core.diverged(row),
        shown=Shown(show).uncovered(core.history[row]),
        cohorts=tuple(one["participants"] for one in core.history[row]) if shares and show == "all" else (),
    )


def facts_of_federation(federation: Federation, row: int, task: str) -> RunFacts:
    """Collect the facts of a run without a controller: its noise is the uniform or the method's own.

    Args:
        federation: the batch.
        row: which of its runs.
        task: name of the task.
    """
    return facts_of_config(federation.config, federation.settings[row].seed, int(federation.rounds[row]), task)


def facts_of_config(config: FederationConfig, seed: int, rounds_done: int, task: str) -> RunFacts:
    """Collect the facts that follow from the settings of a run without a controller, and from its rounds so far."""
    recipe = config.recipe()
    return RunFacts(
        task=task,
        method=config.method,
        controller="",
        seed=seed,
        guarantee=config.guarantee,
        clients=config.clients,
        cohort=config.cohort,
        sampling=config.sampling,
        sampling_rate=config.sampling_rate,
        placement=config.placement,
        rounds=config.rounds,
        rounds_done=rounds_done,
        exchanges=recipe.exchanges,
        private=recipe.private,
        diverged=False,
        knobs=(),
        signals={},
        adaptive=False,
        uncovered=config.uncovered,
        population=config.population,
        noise_drawn_by=config.noise_model().drawn_by,
        noise=config.noise,
    )


def under_control(
    facts: RunFacts,
    knobs: Sequence[Knob],
    features: Sequence[Feature],
    controller: str,
    reads: Sequence[str] | None,
    tuning: str = "",
) -> RunFacts:
    """Add to a run's facts those of its controller; arguments as in `facts_of`."""
    classes = {feature.name: feature.signal_class for feature in features}
    signals = {name: classes[name] for name in (classes if reads is None else reads) if name in classes}
    named = tuple(knob.name for knob in knobs)
    raw = [name for name, kind in signals.items() if kind == "raw"]
    return replace(
        facts,
        controller=controller,
        knobs=named,
        signals=signals,
        adaptive=sets_noise(named, facts.guarantee) and not all(map(is_schedule_feature, signals)),
        uncovered=(*facts.uncovered, *([f"exact figures that the controller saw: {', '.join(raw)}"] if raw else [])),
        tuning=tuning,
    )


@dataclass(frozen=True)
class RunRecord:
    """Privacy record of a run: its ledgers, and the facts that their ε depends on.

    Attributes:
        facts: of the run.
        books: of the run.
        unsaved_rounds: rounds known by the journal of charges alone, because the run was killed.
    """

    facts: RunFacts
    books: Books
    unsaved_rounds: int = 0

    @property
    def ledger(self) -> Ledger:
        """Ledger that counts the certified ε."""
        return self.books.ledger

    @property
    def claim(self) -> Ledger | None:
        """Ledger that counts the paper's claim; None under `sound`."""
        return self.books.claim

    @property
    def budget(self) -> Ledger:
        """Ledger that set the noise multipliers."""
        return self.books.budget


def record_of(
    core: EnvCore,
    row: int,
    controller: str = "",
    reads: Sequence[str] | None = None,
    tuning: str = "",
    show: str = "all",
) -> RunRecord:
    """The record of a run as it stands; arguments as in `facts_of`."""
    return RunRecord(facts_of(core, row, controller, reads, tuning, show), core.federation.charging.books[row])


def journal_head(record: RunRecord) -> dict[str, Any]:
    """Describe a run for its journal of charges: what does not change on its way."""
    facts = {name: value for name, value in asdict(record.facts).items() if name not in PROGRESS}
    if facts["cohorts_by_seed"]:
        del facts["cohorts_by_seed"]  # as in journals from before there were other runs
    return describe(facts, record.books)


def write_record(folder: Path, record: RunRecord) -> None:
    """Write a run's `ledger.json`, whole or not at all."""
    books = record.books
    content = {
        "facts": asdict(record.facts),
        "accountant": books.ledger.accountant,
        "claimed_by": None if books.claim is None else books.claim.accountant,
        "charges_are": _LEGEND,
        "journal": FILE_OF_CHARGES if (folder / FILE_OF_CHARGES).exists() else None,
        "joint_noise_multipliers": [charge.noise_multiplier for charge in books.ledger.charges],
        **books.state_dict(),
    }
    write_json(folder / FILE, sealed(spelled_out(content), FORMAT))


@checked
def read_record(folder: Path | str) -> RunRecord:
    """Read the record of a run, with every charge that is on disk.

    Raises:
        InputError: it is no run's folder, its ledger was edited, is damaged or contradicts itself, its journal of
            charges or the run beside it.
    """
    folder = Path(folder)
    require(folder.is_dir(), f"There is no folder '{folder}'.")
    path = folder / FILE
    require(path.is_file(), f"'{folder}' is not the folder of a run: it has no {FILE}.")
    content = read_sealed(path, FORMAT)
    with understood(f"The file '{path}' is not one that a run wrote"):
        facts = record_fields(RunFacts, content["facts"], f"The file '{path}'")
        for name in ("knobs", "uncovered", "shown", "cohorts"):
            facts[name] = items(facts[name], name, lambda one: one)
        books = Books(
            Ledger.from_state(content["ledger"]),
            None if content["claim"] is None else Ledger.from_state(content["claim"]),
            tuple(Ledger.from_state(one) for one in content["clients"]),
        )
        record = RunRecord(RunFacts(**facts), books)
        record.facts.check(f"The file '{path}'")
    check_books(path, asdict(record.facts), record.books)
    record = _with_journal(record, folder, bool(content.get("journal")))
    check_folder(folder, asdict(record.facts), record.books)
    return record


def _with_journal(record: RunRecord, folder: Path, expected: bool) -> RunRecord:
    """Charge to a record's books what its journal alone knows; `expected` says that there must be a journal."""
    path = folder / FILE_OF_CHARGES
    if not path.exists():
        require(not expected, f"The ledger in '{folder}' was written beside a {FILE_OF_CHARGES}, which is missing.")
        return record
    journal, books = read_journal(path), record.books
    require_same_run(path, journal.run, journal_head(record), FILE)
    require_prefix(books, journal, path, FILE)
    unsaved = len(journal.rounds) - len(books.ledger.charges)
    for name, ledger in books.by_name().items():
        for index, releases in journal.of(name)[len(ledger.charges) :]:
            try:
                ledger.charge(index, [Release(what, float(sigma), kind) for what, sigma, kind in releases])
            except BudgetExhausted as error:
                raise InputError(f"The file '{path}' is not one that a run wrote: {error}") from error
    if not unsaved:
        return record
    facts = replace(record.facts, rounds_done=len(journal.rounds))
    return RunRecord(facts, books, unsaved)
