"""The journal of charges: on disk before a round runs, joined with `ledger.json`, refused where it was changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs import EnvCore, make_core
from experiments.records import charge_journal
from experiments.records.charge_journal import FILE, ChargeJournal, read_journal
from experiments.records.ledger_file import journal_head, read_record, record_of, write_record
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from fl_core.run.round import Round
from tests.fuzz import survivors

SIZE: dict[str, Any] = {"clients": 8, "rounds": 5, "local_steps": 1, "executor": "vectorized"}
OWN_BUDGETS = {"set": "mechanism.client_budget=own", "client_epsilon": "2,7.5", "epsilon": 7.5}


def core_of(seed: int = 3, **settings: Any) -> EnvCore:
    core = make_core(1, **SIZE | settings)
    core.reset([0], [RunSettings(seed=seed)])
    return core


def journalled(core: EnvCore, folder: Path) -> ChargeJournal:
    record = record_of(core, 0)
    journal = ChargeJournal.start(folder, journal_head(record))
    core.federation.charging.on_charge = journal.charge
    write_record(folder, record)
    return journal


def step(core: EnvCore, rounds: int) -> None:
    for _ in range(rounds):
        core.step(np.full((1, len(core.knobs)), 0.1))


@pytest.mark.parametrize(
    "settings", [{}, {"method": "adp-pfl", "guarantee": "as-published"}, OWN_BUDGETS, {"epsilon": float("inf")}]
)
def test_what_is_read_holds_every_charge_though_the_ledger_was_written_before(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    core = core_of(**settings)
    journalled(core, tmp_path)
    step(core, 2)
    write_record(tmp_path, record_of(core, 0))
    step(core, 2)
    found, books = read_record(tmp_path), core.federation.charging.books[0]
    assert found.unsaved_rounds == 2
    assert found.facts.rounds_done == 4
    assert found.books.state_dict() == books.state_dict()
    write_record(tmp_path, record_of(core, 0))
    assert read_record(tmp_path).unsaved_rounds == 0


def test_a_charge_is_on_disk_before_its_round_touches_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of()
    journalled(core, tmp_path)
    plain, synced, on_disk = Round.__init__, [], []
    real = os.fsync
    monkeypatch.setattr(charge_journal.os, "fsync", lambda handle: (synced.append(handle), real(handle)))

    def begin(self: Round, *arguments: Any) -> None:
        on_disk.append((len(read_journal(tmp_path / FILE).rounds), len(synced)))
        plain(self, *arguments)

    monkeypatch.setattr(Round, "__init__", begin)
    step(core, 3)
    assert on_disk == [(1, 1), (2, 2), (3, 3)]


def test_a_round_whose_charge_cannot_be_written_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of()
    journalled(core, tmp_path)
    step(core, 1)
    before = core.federation.server.clone()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(charge_journal.os, "fsync", full)
    with pytest.raises(InputError, match=r"The charge of round 2 could not be written to .*: No space left on device"):
        step(core, 1)
    assert (core.federation.server == before).all()
    assert core.federation.rounds[0] == 1


def test_replayed_rounds_are_written_once_and_may_not_be_charged_otherwise(tmp_path: Path) -> None:
    core = core_of(knobs="budget_pace")
    journalled(core, tmp_path)
    step(core, 2)
    state = core.state_dict()
    step(core, 2)
    text = (tmp_path / FILE).read_bytes()
    again = core_of(knobs="budget_pace")
    again.load_state_dict(state)
    record = record_of(again, 0)
    again.federation.charging.on_charge = ChargeJournal.resume(tmp_path, journal_head(record), record.books).charge
    step(again, 2)
    assert (tmp_path / FILE).read_bytes() == text
    step(again, 1)
    assert len(read_journal(tmp_path / FILE).rounds) == 5
    again.load_state_dict(state)
    again.federation.charging.on_charge = ChargeJournal.resume(tmp_path, journal_head(record), record.books).charge
    with pytest.raises(InputError, match=r"Round 3 was released before with the charges ledger update .* start anew\."):
        again.step(np.array([[-0.5]]))


def test_a_torn_last_line_is_of_a_round_that_has_not_run(tmp_path: Path) -> None:
    core = core_of()
    journalled(core, tmp_path)
    step(core, 2)
    whole = (tmp_path / FILE).read_bytes()
    for torn in (b'{"charges": {"led', b"\0" * 40):
        (tmp_path / FILE).write_bytes(whole + torn)
        assert read_record(tmp_path).facts.rounds_done == 2
    record = record_of(core, 0)
    core.federation.charging.on_charge = ChargeJournal.resume(tmp_path, journal_head(record), record.books).charge
    step(core, 1)
    assert read_record(tmp_path).facts.rounds_done == 3


def _lines(change: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda text: "".join(change(text.splitlines(keepends=True)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda text: text.replace('"update"', '"upfate"', 1), "changed since it was written: line 2"),
        (_lines(lambda lines: [lines[0], *lines[2:]]), "changed since it was written: line 2"),
        (_lines(lambda lines: [lines[0], lines[2], lines[1], lines[3]]), "changed since it was written: line 2"),
        (_lines(lambda lines: lines[1:]), "changed since it was written: line 1"),
        (_lines(lambda lines: [*lines[:-1], "nonsense\n"]), "changed since it was written: line 4"),
        (_lines(lambda lines: lines[:-1]), "holds 2 charges of the ledger, but ledger.json holds 3"),
        (lambda text: "", "is empty"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "changed since it was written: line 1"),
    ],
)
def test_a_changed_journal_is_refused(change: Callable[[str], str], sentence: str, tmp_path: Path) -> None:
    core = core_of()
    journalled(core, tmp_path)
    step(core, 3)
    write_record(tmp_path, record_of(core, 0))
    path = tmp_path / FILE
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=sentence):
        read_record(tmp_path)


def test_a_missing_or_another_runs_journal_is_refused(tmp_path: Path) -> None:
    core, other = core_of(), core_of(seed=4)
    for name, one in (("one", core), ("other", other)):
        (tmp_path / name).mkdir()
        journalled(one, tmp_path / name)
        step(one, 2)
        write_record(tmp_path / name, record_of(one, 0))
    own, path = record_of(core, 0), tmp_path / "one" / FILE
    path.write_bytes((tmp_path / "other" / FILE).read_bytes())
    with pytest.raises(InputError, match=r"is of another run: its facts.seed is 4, but in ledger.json it is 3"):
        read_record(tmp_path / "one")
    with pytest.raises(InputError, match=r"its facts.seed is 4, but in the run to go on it is 3"):
        ChargeJournal.resume(tmp_path / "one", journal_head(own), own.books)
    path.unlink()
    with pytest.raises(InputError, match=r"written beside a charges\.jsonl, which is missing"):
        read_record(tmp_path / "one")
    with pytest.raises(InputError, match="could not be read"):
        ChargeJournal.resume(tmp_path / "one", journal_head(own), own.books)
    with pytest.raises(InputError, match=r"has a charges.jsonl already"):
        ChargeJournal.start(tmp_path / "other", journal_head(own))


def test_a_saved_state_that_is_ahead_of_the_journal_is_refused(tmp_path: Path) -> None:
    core = core_of()
    journalled(core, tmp_path)
    step(core, 2)
    core.federation.charging.on_charge = None
    step(core, 1)
    record = record_of(core, 0)
    with pytest.raises(InputError, match="holds 2 charges of the ledger, but the saved state holds 3"):
        ChargeJournal.resume(tmp_path, journal_head(record), record.books)


def test_the_first_line_says_whose_charges_follow(tmp_path: Path) -> None:
    core = core_of(**OWN_BUDGETS)
    journalled(core, tmp_path)
    head = json.loads((tmp_path / FILE).read_text().splitlines()[0])
    assert head["facts"]["seed"] == 3
    assert head["budgets"]["ledger"]["epsilon"] == 7.5
    assert [head["budgets"][f"client budget {place}"]["epsilon"] for place in range(2)] == [2.0, 7.5]


@pytest.mark.parametrize("edits", [100, pytest.param(500, marks=pytest.mark.long)])
def test_a_journal_that_a_stranger_has_edited_and_sealed_is_refused_or_can_be_read(edits: int, tmp_path: Path) -> None:
    core = core_of()
    journalled(core, tmp_path)
    step(core, 3)
    path, edited = tmp_path / FILE, tmp_path / "edited.json"
    edited.write_text(json.dumps({"lines": [json.loads(line) for line in path.read_text().splitlines()]}))

    def use() -> None:
        lines, seal = json.loads(edited.read_text()).get("lines"), ""
        texts = []
        for line in lines if isinstance(lines, list) else []:
            if isinstance(line, dict):
                content = {name: value for name, value in line.items() if name != "sha256"}
                seal = charge_journal._seal_of(seal, content)
                line = {**content, "sha256": seal}
            texts.append(json.dumps(line) + "\n")
        path.write_text("".join(texts))
        read_record(tmp_path)

    refused, used, faults = survivors(edited, use, edits, 5, lambda record: record)
    assert not faults, "\n".join(faults)
    assert refused > edits / 4
    assert used > 0
