"""Orders and finished jobs that a stranger has edited, and sealed again, are refused in a sentence or can be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import experiments.commands.paper as paper_module
import experiments.commands.run as run_module
import experiments.commands.train as train_module
from experiments.cli import main
from experiments.commands.audit import AuditCommand
from experiments.commands.compare import CompareCommand
from experiments.commands.paper import PaperCommand
from experiments.commands.run import RunCommand
from experiments.commands.train import TrainCommand
from experiments.commands.train_seeds import holds_several, train_seeds
from experiments.records.comparison import Episode
from experiments.records.finished import FinishedJobs, Job
from experiments.records.order import FILE
from fl_core.base.fields import items
from fl_core.training.measured import adopt_choices
from tests.fuzz import survivors

EDITS = 25
MANY = 500
SMALL = ["--clients", "6", "--delta", "0.05", "--rounds", "2", "--local-steps", "1", "--executor", "vectorized"]


class Reached(Exception):
    """The work that an order asks for would begin."""


def _reach(*_: Any, **__: Any) -> Any:
    raise Reached


def _compare(folder: Path) -> None:
    CompareCommand(resume=folder).execute()


def _run(folder: Path) -> None:
    RunCommand(resume=folder).execute()


def _train(folder: Path) -> None:
    TrainCommand(resume=folder).execute()


def _several(folder: Path) -> None:
    if not holds_several(folder):
        raise Reached  # taken as the order of one training
    train_seeds(folder, None, _reach, ())


def _audit(folder: Path) -> None:
    AuditCommand(resume=folder).execute()


def _paper(folder: Path) -> None:
    PaperCommand(resume=folder).execute()


KINDS: dict[str, tuple[list[str], tuple[Any, str], Callable[[Path], None]]] = {
    "compare": (
        [*SMALL, "--controllers", "fixed:0.5", "best-fixed", "--seeds", "2", "--vary", "clients=6,8"],
        (CompareCommand, "play"),
        _compare,
    ),
    "run": ([*SMALL, "--controller", "fixed:0.5"], (run_module, "_begin"), _run),
    "train": ([*SMALL, "--episodes", "8"], (train_module, "train"), _train),
    "train-seeds": ([*SMALL, "--episodes", "8", "--seeds", "2"], (train_module, "train_seeds"), _several),
    "audit": (["--papers", "{}/made"], (AuditCommand, "_audit_papers"), _audit),
    "paper": (
        ["fedglp-adp-table3", "--dataset", "digits", "--model", "mlp", "--rounds", "2", "--folder", "{}/made"],
        (paper_module, "run_cells"),
        _paper,
    ),
}


COUNTS = [EDITS, pytest.param(MANY, marks=pytest.mark.long)]


@pytest.mark.parametrize("edits", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_orders(
    edits: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, (owner, work), go_on = KINDS[kind]
    monkeypatch.setattr(owner, work, _reach)
    place = [] if kind == "paper" else ["--runs", str(tmp_path)]
    with pytest.raises(Reached):
        main([kind.partition("-")[0], *(one.format(tmp_path) for one in options), *place])
    (path,) = tmp_path.glob(f"*/{FILE}")

    def use() -> None:
        try:
            go_on(path.parent)
        except Reached:
            return
        raise AssertionError("the order was neither refused nor carried out")

    use()
    refused, used, faults = survivors(path, use, edits, 7)
    assert not faults, "\n".join(faults)
    assert refused > edits / 4
    assert used > 0


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Job]]:
    """The jobs of a comparison with a search, one of each kind, and the folder of their records."""
    root, made = tmp_path_factory.mktemp("jobs"), dict[str, Job]()
    plain = FinishedJobs.keep

    def keep(self: FinishedJobs, job: Job, results: Any) -> None:
        made[job.stem.partition("-")[0]] = job
        plain(self, job, results)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FinishedJobs, "keep", keep)
        patched.setattr(FinishedJobs, "drop", lambda self: None)
        asked = [
            "compare",
            *SMALL,
            "--controllers",
            "fixed:0.5",
            "best-fixed",
            "--seeds",
            "2",
            "--search-instances",
            "1",
        ]
        assert main([*asked, "--quiet", "--runs", str(root)]) == 0
    (folder,) = root.glob("*/jobs")
    return folder, made


@pytest.mark.parametrize("edits", COUNTS)
@pytest.mark.parametrize("kind", ["search", "play"])
def test_finished_jobs(edits: int, kind: str, jobs: tuple[Path, dict[str, Job]]) -> None:
    folder, made = jobs
    finished, job = FinishedJobs(folder), made[kind]

    def use() -> None:
        found = finished.read(job)
        assert finished.recall(job, lambda rounds: None) == found
        if kind == "play":
            assert [one.seed for one in items(found["episodes"], "episodes", Episode.from_json)]
        else:
            assert sum(map(float, found["finals"])) >= 0

    refused, used, faults = survivors(finished.path(job), use, edits, 7)
    assert not faults, "\n".join(faults)
    assert refused > edits / 4
    assert used > 0


def test_a_damaged_record_is_as_if_the_job_were_not_done(tmp_path: Path) -> None:
    finished, job = FinishedJobs(tmp_path), Job("play", {"seed": 1})
    for executors in ({"shape": "vectorized"}, {"shape": ["fast", "x"]}, {"shape": ["vectorized", 1]}):
        finished.finish(job, {}, 1, 0.5, executors)
        assert finished.recall(job, lambda rounds: None) is None
    finished.finish(job, {}, 1, 0.5, {"no shape": ["vectorized", "chosen"]})
    assert finished.recall(job, lambda rounds: None) is not None
    adopt_choices({"no shape": ["vectorized", "chosen"]})
