"""`dpilot run` leaves a folder from which an interrupted run goes on as if it had not stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import experiments.commands.run as run_module
from agents import TrainingConfig, save_controller, train
from agents.online_learner import OnlineSettings
from envs import EnvCore
from experiments.cli import main
from experiments.contenders import search
from experiments.records.finished import JOBS
from experiments.records.run_state import load_run_state
from fl_core.base.errors import InputError

COMMAND = ["run", "--clients", "10", "--rounds", "15", "--partition", "iid", "--executor", "vectorized"]
COMMAND += ["--method", "acdp-pfsd", "--evaluation-samples", "50"]


def _folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder and below, by its path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C in the midst of a decision; the state was written after each one before."""
    plain, calls = EnvCore.step, 0

    def step(self: EnvCore, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += self.spec.evaluate_every_round  # the run's steps, not those of a search before it
        if calls > after:
            self.federation.state.rounds[:] += 1  # whatever is half done then must not matter
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(EnvCore, "step", step)
    monkeypatch.setattr(run_module, "SAVE_SECONDS", -1.0)


@pytest.mark.parametrize(
    ("controller", "after"),
    [("online-ppo", 14), ("random", 5), ("fixed", 0), ("aqc:0.4+random:1:budget_pace,server_learning_rate", 5)],
)
def test_an_interrupted_run_goes_on_exactly(
    controller: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*COMMAND, "--controller", controller]
    assert main([*command, "--runs", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patched:
        _interrupt(patched, after)
        assert main([*command, "--runs", str(tmp_path / "stopped")]) == 130
    stopped = _folder(tmp_path / "stopped")
    assert json.loads((stopped / "summary.json").read_text())["status"] == "interrupted"
    assert main(["run", "--resume", str(stopped)]) == 0
    whole = _folder(tmp_path / "whole")
    for name in ("rounds.csv", "summary.json"):
        assert (stopped / name).read_text() == (whole / name).read_text(), name
    assert not list(stopped.glob("state*"))
    assert not (stopped / JOBS).exists()
    before = contents(stopped)
    capsys.readouterr()
    assert main(["run", "--resume", str(stopped)]) == 0
    assert "is complete, so nothing was changed" in capsys.readouterr().out
    assert contents(stopped) == before


def test_a_run_stopped_in_its_search_goes_on_after_the_finished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*COMMAND, "--controller", "best-fixed", "--search-instances", "1"]
    assert main([*command, "--runs", str(tmp_path / "whole")]) == 0
    played: list[int] = []
    plain = search.run_to_the_end

    def stop_in_the_second(core: EnvCore, *args: Any, **kwargs: Any) -> Any:
        if played:
            raise KeyboardInterrupt
        played.append(core.runs)
        return plain(core, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(search, "run_to_the_end", stop_in_the_second)
        capsys.readouterr()
        assert main([*command, "--runs", str(tmp_path / "stopped")]) == 130
    stopped = _folder(tmp_path / "stopped")
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith(f"'{stopped}' holds 1 finished part of its search; to go on: dpilot run --resume {stopped}")
    monkeypatch.setattr(search, "run_to_the_end", lambda core, *a: played.append(core.runs) or plain(core, *a))
    assert main(["run", "--resume", str(stopped)]) == 0
    assert played == [9, 4]  # the grid, before; and the values around its best, after
    whole = _folder(tmp_path / "whole")
    for name in ("rounds.csv", "summary.json", "ledger.json", "charges.jsonl"):
        assert (stopped / name).read_text() == (whole / name).read_text(), name


@pytest.mark.parametrize("option", [["--seed", "3"], ["--rounds", "9"], ["--task", "fashion-mnist"]])
def test_other_options_beside_resume_are_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--resume", str(tmp_path), *option]) == 2
    assert f"{option[0][2:]} is given beside resume" in capsys.readouterr().err


def test_a_damaged_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        _interrupt(patched, 1)
        assert main([*COMMAND, "--runs", str(tmp_path)]) == 130
    folder = _folder(tmp_path)
    (tensors,) = folder.glob("state-*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-9])
    with pytest.raises(InputError, match="damaged or was exchanged"):
        load_run_state(folder)
    (folder / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"state\.json"):
        load_run_state(folder)
    with pytest.raises(InputError, match="no folder"):
        load_run_state(tmp_path / "nowhere")


def _interrupted(options: list[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patched:
        _interrupt(patched, 1)
        assert main([*COMMAND, *options, "--runs", str(root)]) == 130
    return _folder(root)


@pytest.mark.parametrize(
    ("options", "patched", "value", "sentence"),
    [
        ([], "agents.provenance.code_version", lambda: "0" * 12, "was made with code "),
        (
            ["--controller", "fixed"],
            "envs.signals.SIGNAL_SETS",
            {"public": ("public", "raw")},
            "was made with features.",
        ),
        (
            ["--controller", "online-ppo"],
            "agents.online_learner.OnlineSettings.buffer",
            5,
            "with controller.parameters.buffer 10",
        ),
        (
            ["--controller", "best-fixed", "--search-instances", "1"],
            "experiments.contenders.fixed_clip_search.COARSE_VALUES",
            2,
            "with controller.parameters.clip_norm",
        ),
    ],
)
def test_a_run_made_otherwise_is_refused_in_a_sentence(
    options: list[str],
    patched: str,
    value: Any,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = _interrupted(options, tmp_path, monkeypatch)
    before = contents(folder)
    if patched.endswith("OnlineSettings.buffer"):
        defaults = tuple(value if one == 10 else one for one in OnlineSettings.__init__.__defaults__ or ())
        monkeypatch.setattr(OnlineSettings.__init__, "__defaults__", defaults)
    else:
        monkeypatch.setattr(patched, value)
    capsys.readouterr()
    assert main(["run", "--resume", str(folder)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in error
    assert error.endswith("start anew.")
    assert contents(folder) == before


def test_a_controller_trained_again_in_its_folder_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"clients": 10, "rounds": 15, "partition": "iid", "decision_rounds": 1, "executor": "vectorized"}
    short = TrainingConfig(environments=2, episodes=2, validation_instances=1, parallel="rows", network=(4,))
    trained = train(own, short, tmp_path / "training")
    folder = _interrupted(["--controller", f"ppo:{trained.folder}"], tmp_path / "runs", monkeypatch)
    blueprint = trained.controller.blueprint
    weights = {name: value + 1 for name, value in trained.controller.policy.state_dict().items()}
    save_controller(trained.folder, blueprint, weights)
    assert main(["run", "--resume", str(folder)]) == 2
    assert "was made with controller.weights_sha256" in capsys.readouterr().err
    save_controller(trained.folder, blueprint, trained.controller.policy.state_dict())
    assert main(["run", "--resume", str(folder)]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--controller", "online-ppo:exact"], "signals of controller 'online-ppo' 'exact' is unknown"),
        (["--controller", "online-ppo", "--method", "local-only"], "knob 'clip_norm' does not exist"),
        (["--controller", "online-ppo", "--telemetry", "layer-norms"], "telemetry 'accuracy,loss'"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *options, "--runs", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
