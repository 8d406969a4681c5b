"""`dpilot compare` keeps what is finished: a comparison that is stopped goes on, and equals one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import experiments.contenders.play as play_module
from agents import TrainingConfig, save_controller, train
from experiments.cli import main
from experiments.records.finished import JOBS, FinishedJobs, Job
from experiments.records.order import FILE
from tests.experiments.killed import run_killed

OPTIONS = ["--clients", "6", "--delta", "0.05", "--rounds", "2", "--local-steps", "1", "--partition", "iid"]
COMMAND = ["compare", *OPTIONS, "--seeds", "2", "--search-instances", "1"]
COMMAND += ["--controllers", "fixed:0.5", "best-fixed", "random", "--vary", "clients=6,8"]
ITS_OWN = {"created", "wall_seconds", "command", "executor"}


def _folder(root: Path) -> Path:
    (folder,) = (path for path in root.iterdir() if "compare" in path.name)
    return folder


def _result(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "comparison.json").read_text())
    return {name: value for name, value in content.items() if name not in ITS_OWN}


def test_a_killed_comparison_goes_on_bit_for_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*COMMAND, "--executor", "vectorized"]
    assert main([*command, "--runs", str(tmp_path / "whole")]) == 0
    killed = [*command, "--runs", str(tmp_path / "killed")]
    run_killed(killed, "experiments.records.finished:FinishedJobs.keep", call=5)
    folder = _folder(tmp_path / "killed")
    assert len(list((folder / JOBS).iterdir())) == 4  # two stages of the search, and two plays
    assert not (folder / "comparison.json").exists()
    assert main(["compare", "--resume", str(folder)]) == 0
    assert _result(folder) == _result(_folder(tmp_path / "whole"))
    assert not (folder / JOBS).exists()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["compare", "--resume", str(folder)]) == 0
    assert "is complete, so nothing was changed" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def _stop(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C after some plays."""
    plain, calls = play_module.run_to_the_end, 0

    def stopped(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(play_module, "run_to_the_end", stopped)


def test_an_interruption_says_how_to_go_on_and_nothing_is_played_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", *OPTIONS, "--seeds", "2", "--controllers", "fixed:0.5", "fixed:1", "random:3"]
    with monkeypatch.context() as patched:
        _stop(patched, after=2)
        assert main([*command, "--runs", str(tmp_path)]) == 130
    folder = _folder(tmp_path)
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == (
        f"dpilot: interrupted; '{folder}' holds 2 finished parts; to go on: dpilot compare --resume {folder}"
    )
    measured = [json.loads(path.read_text())["executors"] for path in (folder / JOBS).iterdir()]
    assert measured[0] == measured[1] != {}  # which executor `auto` has chosen, for what is left
    with monkeypatch.context() as patched:
        _stop(patched, after=1)
        assert main(["compare", "--resume", str(folder)]) == 0
    order = json.loads((folder / FILE).read_text())
    assert json.loads((folder / "comparison.json").read_text())["command"] == order["options"]["typed"]


def test_a_comparison_by_other_code_or_with_another_controller_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"clients": 6, "rounds": 2, "partition": "iid", "decision_rounds": 1, "executor": "vectorized"}
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    trained = train(own, short, tmp_path / "training")
    command = ["compare", *OPTIONS, "--seeds", "1", "--controllers", "fixed:0.5", f"ppo:{trained.folder}"]
    with monkeypatch.context() as patched:
        _stop(patched, after=1)
        assert main([*command, "--runs", str(tmp_path)]) == 130
    folder = _folder(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("experiments.commands.compare.code_version", lambda *_: "0" * 12)
        assert main(["compare", "--resume", str(folder)]) == 2
        assert "was made with code " in capsys.readouterr().err
    weights = {name: value + 1 for name, value in trained.controller.policy.state_dict().items()}
    save_controller(trained.folder, trained.controller.blueprint, weights)
    assert main(["compare", "--resume", str(folder)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"The comparison in '{folder}' was made with controllers.ppo:" in error
    assert error.endswith("start anew.")
    (folder / FILE).write_text((folder / FILE).read_text().replace('"seeds": 1', '"seeds": 2'))
    assert main(["compare", "--resume", str(folder)]) == 2
    assert "order.json' was changed since it was written" in capsys.readouterr().err


def test_a_record_is_used_for_its_own_job_alone(tmp_path: Path) -> None:
    finished = FinishedJobs(tmp_path)
    job, other = Job("play", {"seed": 1, "epsilon": float("inf")}), Job("play", {"seed": 2})
    done: list[str] = []

    def work(progress: Any) -> dict[str, Any]:
        done.append("worked")
        progress(7)
        return {"value": 0.1}

    rounds: list[int] = []
    assert finished.once(job, rounds.append, work)["value"] == finished.once(job, rounds.append, work)["value"] == 0.1
    assert (done, rounds, finished.count) == (["worked"], [7, 7], 2)
    finished.path(job).rename(finished.path(other))
    assert finished.find(other) is None
    assert FinishedJobs().find(job) is None
