"""A run that is killed: its ledger on disk knows every round that was charged, and it goes on bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli import main
from experiments.records.charge_journal import FILE, read_journal
from experiments.records.ledger_file import read_record
from tests.experiments.killed import run_killed

COMMAND = ["run", "--clients", "8", "--rounds", "12", "--local-steps", "1", "--executor", "vectorized"]
COMMAND += ["--controller", "budget-linear", "--evaluation-samples", "20"]


def _folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def test_a_killed_run_is_told_truly_and_goes_on_bit_for_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_killed([*COMMAND, "--runs", str(tmp_path / "killed")], "fl_core.training.executors:Executor.train", call=9)
    killed = _folder(tmp_path / "killed")
    assert main([*COMMAND, "--runs", str(tmp_path / "whole")]) == 0
    whole = _folder(tmp_path / "whole")
    certain = read_record(whole)

    found = read_record(killed)  # the ninth round was charged, and touched data
    assert found.facts.rounds_done == 9
    assert found.unsaved_rounds == 8  # ledger.json knows the first decision
    assert found.ledger.charges == certain.ledger.charges[:9]
    capsys.readouterr()
    assert main(["ledger", str(killed)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "9 of 12 rounds" in printed
    assert "interrupted 8 of these rounds are known by the journal of charges alone" in printed

    assert main(["run", "--resume", str(killed)]) == 0
    for name in ("rounds.csv", "summary.json", "ledger.json", FILE):
        assert (killed / name).read_text() == (whole / name).read_text(), name
    assert len(read_journal(killed / FILE).rounds) == 12
