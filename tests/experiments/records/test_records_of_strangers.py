"""Records that a stranger has edited, and sealed again, are refused in a sentence or can be used."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import experiments.commands.run as run_module
from agents import load_controller, train
from agents.training import resume
from envs import Setting
from experiments.cli import main
from experiments.commands.ledger import print_report
from experiments.contenders.trainings import load_trainings
from experiments.papers.cell_records import read_record as read_record_of_cell
from experiments.papers.cells import make_cells
from experiments.papers.measures import MEASURES
from experiments.papers.progress import TableProgress
from experiments.papers.results import gather, write_data
from experiments.papers.runs import run_cell
from experiments.papers.sheets import markdown
from experiments.papers.tables import find_table
from experiments.records.comparison import Comparison
from experiments.records.ledger_file import read_record
from experiments.reports.comparison import table
from experiments.reports.verdict import verdict
from experiments.terminal import console
from fl_core.base.errors import InputError
from fl_core.base.files import digest
from tests.agents.conftest import SHORT, TINY
from tests.experiments.records.stopped import interrupted_after
from tests.fuzz import reseal, survivors

EDITS = 100
MANY = 500
SIZE = ["--clients", "8", "--executor", "vectorized", "--quiet"]
COUNTS = [EDITS, pytest.param(MANY, marks=pytest.mark.long)]


def _only(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with its ledger alone."""
    root = tmp_path_factory.mktemp("finished")
    assert main(["run", "--rounds", "3", "--controller", "fixed:0.5", *SIZE, "--runs", str(root)]) == 0
    folder = _only(root)
    for name in ("charges.jsonl", "config.yaml", "summary.json"):
        (folder / name).unlink()
    path = folder / "ledger.json"
    path.write_text(json.dumps(reseal(json.loads(path.read_text()) | {"journal": None})))
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder from which the run can go on."""
    root = tmp_path_factory.mktemp("interrupted")
    with interrupted_after(2):
        assert main(["run", "--rounds", "5", "--controller", "random", *SIZE, "--runs", str(root)]) == 130
    return _only(root)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "run"
    train(TINY, SHORT, folder)
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    command = ["compare", "--controllers", "fixed:0.5", "fixed:1", "--seeds", "2", "--rounds", "2"]
    assert main([*command, *SIZE, "--runs", str(root)]) == 0
    return _only(root)


def _hold(path: Path, use: Callable[[], Any], edits: int, seal: Callable[[Any], Any] = reseal) -> None:
    refused, used, faults = survivors(path, use, edits, 5, seal)
    assert not faults, "\n".join(faults)
    assert refused > edits / 4
    assert used > 0, "not even a harmless edit is taken, so the fixture itself is refused"


def _seal_ledger(record: Any) -> Any:
    ledger = record.get("ledger")
    if isinstance(ledger, dict):
        with contextlib.suppress(ValueError, RecursionError):
            ledger["sha256"] = digest({name: value for name, value in ledger.items() if name != "sha256"})
    return reseal(record)


@pytest.mark.parametrize("edits", COUNTS)
def test_ledgers(edits: int, finished: Path) -> None:
    def use() -> None:
        print_report(read_record(finished), console(100, io.StringIO()))

    _hold(finished / "ledger.json", use, edits, _seal_ledger)


@pytest.mark.parametrize("edits", COUNTS)
def test_bundles(edits: int, training: Path) -> None:
    folder = training / "controller"

    def use() -> None:
        controller = load_controller(folder)
        controller.predict(np.zeros(len(controller.blueprint.features), np.float32))
        controller.describe()
        trainings = load_trainings(f"ppo:{folder}")
        assert all((trainings.names, trainings.label, trainings.words, trainings.rounds >= 0))
        trainings.differences(Setting.of())

    _hold(folder / "controller.json", use, edits)


@pytest.mark.parametrize("edits", COUNTS)
def test_states_of_runs(edits: int, interrupted: Path, tmp_path: Path) -> None:
    def use() -> None:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(interrupted, tmp_path / "copy")
        run_module.RunCommand(resume=tmp_path / "copy").execute()

    _hold(interrupted / "state.json", use, edits)


@pytest.mark.parametrize("edits", COUNTS)
def test_checkpoints_of_trainings(edits: int, training: Path) -> None:
    _hold(training / "checkpoint.json", lambda: resume(training), edits)


@pytest.mark.parametrize("edits", COUNTS)
def test_comparisons(edits: int, compared: Path) -> None:
    def use() -> None:
        comparison = Comparison.read(compared / "comparison.json")
        assert all((table(comparison), verdict(comparison), comparison.basis))

    _hold(compared / "comparison.json", use, edits, lambda record: record)


@pytest.mark.parametrize("edits", COUNTS)
def test_cells_of_papers(edits: int, tmp_path: Path) -> None:
    table = find_table("fedglp-adp-table3")
    change = {"dataset": "digits", "model": "mlp", "rounds": 2, "clients": 8, "local_steps": 1, "local_epochs": 0.0}
    cell = make_cells(table, ("sound",), 1, change | {"executor": "vectorized"}, curves=True)[0]
    cell.records(tmp_path).keep(cell.job, run_cell(cell, tmp_path, lambda rounds: None))
    path = cell.path(tmp_path)

    def use() -> None:
        record = read_record_of_cell(cell, tmp_path)
        for measure in MEASURES.values():
            measure.read(record, 50.0)
            if measure.after is not None:
                measure.curve(record)
        results = gather(table, [cell], tmp_path)
        write_data(table, results, tmp_path)
        assert markdown(table, results)
        TableProgress([], [cell], tmp_path, 1, lambda: None)

    _hold(path, use, edits)


DEPTH = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("ledger.json", ["ledger", "{}"]),
        ("state.json", ["run", "--resume", "{}"]),
        ("checkpoint.json", ["train", "--resume", "{}"]),
        ("controller.json", ["run", "--controller", "ppo:{}"]),
    ],
)
@pytest.mark.parametrize(
    "content", [DEPTH, '{"a": ' * 5000 + "1" + "}" * 5000, '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1e999}', "\x00"]
)
def test_files_that_are_no_records_are_refused_by_every_command(
    file: str, command: list[str], content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / file).write_text(content)
    assert main([word.format(tmp_path) for word in command]) == 2
    complaint = capsys.readouterr().err.strip()
    assert complaint.startswith(f"dpilot: The file '{tmp_path / file}'")
    assert "\n" not in complaint


@pytest.mark.parametrize("task", ["[/x]", "[bold]x", "\x1b[31mred", "a\nb", "=1+1"])
def test_text_of_strangers_is_shown_as_it_stands_or_refused(task: str, finished: Path) -> None:
    path = finished / "ledger.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(reseal(record | {"facts": record["facts"] | {"task": task}})))
    out = io.StringIO()
    if task.isprintable():
        print_report(read_record(finished), console(100, out))
        assert task in out.getvalue()
    else:
        with pytest.raises(InputError, match=r"characters that cannot be shown\.$") as caught:
            read_record(finished)
        assert str(caught.value).isprintable()
    path.write_text(json.dumps(record))
