"""Books that contradict themselves, or the run whose folder they lie in, are refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from experiments.records.charge_journal import FILE as JOURNAL
from experiments.records.ledger_file import FILE, read_record
from fl_core.base.sealed import digest_of
from fl_core.privacy.ledger import Ledger

SMALL = ["run", "--clients", "8", "--rounds", "4", "--local-steps", "1", "--executor", "vectorized"]
SMALL += ["--evaluation-samples", "20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    assert main([*SMALL, "--runs", str(root)]) == 0
    (made,) = root.iterdir()
    return made


def copied(folder: Path, to: Path, *names: str) -> Path:
    to.mkdir(exist_ok=True)
    for name in names or (FILE, JOURNAL, "config.yaml", "summary.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


def resealed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a ledger and seal it again, as a program with a fault would write it."""
    record = json.loads((folder / FILE).read_text())
    change(record)
    record["digest"] = digest_of(record)
    (folder / FILE).write_text(json.dumps(record))


def without_last_charge(record: dict[str, Any]) -> None:
    ledger = Ledger.from_state(record["ledger"])
    state = ledger.state_dict()
    shorter = Ledger(ledger.epsilon, ledger.delta, ledger.sampling_rate, ledger.rounds)
    for index in range(len(state["charges"]) - 1):
        shorter.charge(index, ledger.charges[index].releases)
    record["ledger"] = shorter.state_dict()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without_last_charge, "its ledger holds 3 charges, but 4 rounds are done"),
        (lambda record: record["facts"].update(rounds_done=2), "its ledger holds 4 charges, but 2 rounds are done"),
        (lambda record: record["facts"].update(rounds=3), "4 of 3 rounds are done"),
        (lambda record: record["facts"].update(rounds=9), "rounds of its facts comes to 9, of its ledger to 4"),
        (lambda record: record["facts"].update(sampling_rate=0.5), "sampling_rate of its facts comes to 0.5"),
        (lambda record: record["facts"].update(guarantee="as-published"), "but it holds no claim"),
        (lambda record: record["facts"].update(private=False), "holds 4 charges"),
    ],
)
def test_books_that_contradict_themselves_are_refused(
    change: Callable[[dict[str, Any]], Any],
    sentence: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copied(folder, tmp_path, FILE)
    resealed(tmp_path, lambda record: (change(record), record.update(journal=None)))
    assert main(["ledger", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "contradicts itself" in error
    assert sentence in error
    assert error.strip().count("\n") == 0


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--seed", "1"], "its seed is 1, not 0"),
        (["--epsilon", "4"], "its epsilon is 4.0, not 7.5"),
        (["--delta", "1e-6"], "its delta is 1e-06, not 1e-05"),
        (["--method", "feddpa"], "its method is feddpa, not dp-fedavg"),
        (["--rounds", "3"], "its rounds is 3, not 4"),
    ],
)
def test_another_runs_books_are_refused(
    options: list[str], difference: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options, "--runs", str(tmp_path / "runs")]) == 0
    (other,) = (tmp_path / "runs").iterdir()
    here = copied(folder, tmp_path / "here")
    copied(other, here, FILE, JOURNAL)
    capsys.readouterr()
    assert main(["ledger", str(here)]) == 2
    error = capsys.readouterr().err
    assert "is of another run than config.yaml beside it" in error
    assert difference in error
    assert error.strip().count("\n") == 0


def test_another_controllers_books_are_told_by_the_summary(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(folder, tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"controller": "random"}))
    assert main(["ledger", str(tmp_path)]) == 2
    assert "than summary.json beside it: its controller is probe" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{}")
    assert main(["ledger", str(tmp_path)]) == 2
    assert "summary.json' is none that a run wrote" in capsys.readouterr().err


def test_a_whole_folder_is_read(folder: Path, tmp_path: Path) -> None:
    record = read_record(copied(folder, tmp_path))
    assert record.unsaved_rounds == 0
    assert record.facts.rounds_done == 4
