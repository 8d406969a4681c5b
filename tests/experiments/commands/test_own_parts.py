"""Commands take a user's own parts from a file, record it, and go on with no other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import experiments.commands.run as run_module
import experiments.contenders.play as play_module
from agents import load_controller
from envs import EnvCore
from experiments import main
from experiments.records import run_state
from experiments.records.comparison import Comparison
from fl_core.base.catalogue import forget_read_files
from fl_core.base.errors import InputError
from fl_core.base.sealed import sealed
from tests.markdown import restored_catalogues

MINE = """
import numpy as np
from torch import nn
from fl_core import Recipe
from policies import Controller, Parameter


class TwoStep(Controller):
    name, summary, label_format = "two-step", "1.0, then less", "two step to {late:g}"
    parameters = (Parameter("late", "clip norm of the second half", 0.4),)

    def decide(self, seen):
        return {"clip_norm": np.where(seen.progress < 0.5, 1.0, self.values["late"])}


def load():
    random, labels = np.random.default_rng(0), np.arange(400) % 3
    return random.random((400, 7)) + np.eye(3, 7)[labels], labels, np.arange(400) % 40


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.head = nn.Linear(shape[2], 6), nn.Linear(6, classes)

    def forward(self, images):
        return self.head(self.inner(images.flatten(1)).tanh())


recipe = Recipe(name="mine", summary="dp-fedavg by another name", source="a test")
gen = "epsilon=3..12"
number = 7
"""
OWN = ["--dataset", "mine.py:load", "--model", "mine.py:Net", "--method", "mine.py:recipe", "--executor", "vectorized"]
OWN += ["--partition", "natural", "--clients", "8", "--rounds", "3"]
NAMES = {"mine.py:load": "dataset", "mine.py:Net": "model", "mine.py:recipe": "method"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    with restored_catalogues():
        yield


def code(names: dict[str, str]) -> dict[str, Any]:
    digest = hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()
    return {
        name: {"kind": kind, "from": "file mine.py", "file": "mine.py", "sha256": digest}
        for name, kind in names.items()
    }


def read(pattern: str) -> Any:
    (path,) = Path("runs").glob(pattern)
    return json.loads(path.read_text())


def test_a_run_of_ones_own_parts_names_their_file_and_goes_on_with_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", *OWN, "--controller", "mine.py:TwoStep:0.3"]
    plain = EnvCore.step

    def step(self: EnvCore, *args: Any, **kwargs: Any) -> Any:
        if self.rounds[0] == 2:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(EnvCore, "step", step)
        patched.setattr(run_module, "SAVE_SECONDS", -1.0)
        assert main(command) == 130
    (folder,) = Path("runs").iterdir()
    assert read("*/summary.json")["origins"] == code(NAMES | {"mine.py:TwoStep": "controller"})
    for changed in ("# a remark\n", "raise SystemExit\n"):
        Path("mine.py").write_text(MINE + changed)
        capsys.readouterr()
        assert main(["run", "--resume", str(folder)]) == 2
        sentence = capsys.readouterr().err
        assert "was read from mine.py with sha256" in sentence
        assert "Traceback" not in sentence
    Path("mine.py").write_text(MINE)
    assert main(["run", "--resume", str(folder)]) == 0
    assert main([*command, "--runs", "whole"]) == 0
    (whole,) = Path("whole").iterdir()
    assert (folder / "rounds.csv").read_text() == (whole / "rounds.csv").read_text()
    clips = [line.split(",") for line in (whole / "rounds.csv").read_text().splitlines()]
    place = clips[0].index("clip_norm")
    assert [round(float(row[place]), 3) for row in clips[1:]] == [1.0, 0.3, 0.3]


def test_a_state_that_names_code_without_its_digest_imports_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EnvCore, "step", stop)
        assert main(["run", "--clients", "8", "--rounds", "2", "--partition", "iid"]) == 130
    (path,) = Path("runs").glob("*/state.json")
    state = json.loads(path.read_text())
    Path("evil.py").write_text("open('ran', 'w').close()\nload = None")
    for entry, value in (
        ("controller", "evil.py:load"),
        ("settings", {**state["about"]["settings"], "dataset": "evil.py:load"}),
    ):
        about = {**state["about"], entry: value}
        path.write_text(json.dumps(sealed({**state, "about": about}, run_state.FORMAT)))
        capsys.readouterr()
        assert main(["run", "--resume", str(path.parent)]) == 2
        assert "it is imported only for who names it" in capsys.readouterr().err
        assert not Path("ran").exists()


def test_a_comparison_of_ones_own_controllers_names_their_file() -> None:
    controllers = ["fixed:1", "mine.py:TwoStep", "mine.py:TwoStep:0.2"]
    assert main(["compare", *OWN, "--seeds", "2", "--controllers", *controllers]) == 0
    (path,) = Path("runs").glob("*/comparison.json")
    comparison = Comparison.read(path)
    digest = hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()
    kinds = NAMES | {"mine.py:TwoStep": "controller"}
    assert comparison.origins == {name: f"{kind}, file mine.py, sha256 {digest}" for name, kind in kinds.items()}
    assert [one.label for one in comparison.controllers] == ["fixed 1", "two step to 0.4", "two step to 0.2"]


def test_a_comparison_goes_on_with_no_other_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, plays = play_module.run_to_the_end, 0

    def stopped(*arguments: Any) -> Any:
        nonlocal plays
        plays += 1
        if plays > 1:
            raise KeyboardInterrupt
        return plain(*arguments)

    command = ["compare", *OWN, "--seeds", "1", "--controllers", "fixed:1", "mine.py:TwoStep"]
    with monkeypatch.context() as patched:
        patched.setattr(play_module, "run_to_the_end", stopped)
        assert main(command) == 130
    (folder,) = Path("runs").iterdir()
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    Path("mine.py").write_text(MINE + "# a remark\n")
    capsys.readouterr()
    assert main(["compare", "--resume", str(folder)]) == 2
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    assert "mine.py" in sentence
    assert "sha256" in sentence
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept
    Path("mine.py").write_text(MINE)
    assert main(["compare", "--resume", str(folder)]) == 0


def test_a_papers_table_takes_ones_own_parts_and_runs_a_changed_file_anew(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "fedglp-adp-table3", "--dataset", "mine.py:load", "--model", "mine.py:Net", "--rounds", "1"]
    command += ["--cells", "epsilon=2", "--methods", "Dynamic", "--guarantees", "sound", "--folder", "table"]
    command += ["--change", "local_epochs=0", "local_steps=1", "executor=vectorized", "clients=8", "partition=iid"]
    command += ["controller=mine.py:TwoStep"]
    for todo in (1, 0):
        assert main(command) == 0
        assert f"1 run, {todo} to do" in capsys.readouterr().out
    (path,) = Path("table/cells").iterdir()
    asked = json.loads(path.read_text())["asked"]
    digest = hashlib.sha256(Path("mine.py").read_bytes()).hexdigest()
    assert json.dumps(asked).count(digest) == 3  # dataset, model and controller
    forget_read_files()
    Path("mine.py").write_text(MINE + "# a remark\n")
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "1 run, 1 to do" in printed
    assert f"sha256 is {digest} there" in printed


def test_a_papers_table_takes_ones_own_method_where_its_rows_set_nothing_that_it_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["paper", "feddpa-table1", "--dataset", "digits", "--model", "mlp", "--rounds", "1", "--folder", "table"]
    command += ["--cells", "epsilon=2", "--methods", "FedDPA", "--guarantees", "sound", "--blocks", "femnist"]
    command += ["--change", "local_epochs=0", "local_steps=1", "executor=vectorized", "clients=8", "partition=iid"]
    assert main([*command, "method=mine.py:recipe"]) == 0
    (path,) = Path("table/cells").iterdir()
    setting = json.loads(path.read_text())["asked"]["setting"]
    assert (setting["method"], setting["origins"]) == ("mine.py:recipe", code({"mine.py:recipe": "method"}))
    capsys.readouterr()
    other = ["paper", "fedglp-adp-table3", "--rounds", "1", "--dataset", "digits", "--model", "mlp", "--folder=other"]
    assert main([*other, "--change", "method=mine.py:recipe"]) == 2
    sentence = capsys.readouterr().err
    assert "change: method 'mine.py:recipe' does not fit row 'Fixed' of fedglp-adp-table3" in sentence
    assert "'personalization.noise_growth' is unknown" in sentence
    assert sentence.count("\n") == 1
    assert not Path("other").exists()


def test_a_training_on_ones_own_parts_carries_their_file_and_goes_on_with_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["train", *OWN, "--generator", "mine.py:gen", "--episodes", "8", "--reward", "final-accuracy"]
    assert main([*command, "--decision-rounds", "3", "--parallel", "rows"]) == 0
    expected = code(NAMES | {"mine.py:gen": "generator"})
    (folder,) = Path("runs").iterdir()
    assert read("*/summary.json")["origins"] == expected
    assert read("*/controller/controller.json")["settings"]["origins"] == expected
    forget_read_files()
    controller = load_controller(folder)
    with pytest.raises(InputError, match="it is imported only for who names it"):
        controller.setting()
    named = {"dataset": "mine.py:load", "model": "mine.py:Net", "method": "mine.py:recipe", "generator": "mine.py:gen"}
    assert controller.setting(**named).origins == expected
    (folder / "summary.json").unlink()  # as if it had been interrupted
    Path("mine.py").write_text(MINE + "# a remark\n")
    assert main(["train", "--resume", str(folder)]) == 2
    assert "was read from mine.py with sha256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--controller", "mine.py:TwoStepp", "mine.py has no such name; did you mean TwoStep"),
        ("--controller", "mine.py:Net", "is the class Net, but a controller is a class made from policies.Controller"),
        ("--controller", "mine.py:TwoStep:a", "late of controller 'mine.py:TwoStep:a' is 'a', but it must be a finite"),
        ("--controller", "mine.py:TwoStep:1:2", "has 2 parameters, but"),
        ("--controller", "mine.py:TwoStep:-1", "but it must be a finite number above 0"),
        ("--dataset", "mine.py:number", "dataset 'mine.py:number' is of type int, but a dataset is"),
        ("--dataset", "none.py:load", "there is no file 'none.py'"),
        ("--dataset", "none.npz", "there is no file 'none.npz'"),
        ("--model", "mine.py:number", "model 'mine.py:number' is of type int, but a model is an nn.Module"),
        ("--method", "mine.py:number", "is of type int, but a method is a fl_core.Recipe"),
        ("--method", "mine.py:Net", "method 'mine.py:Net' is called with nothing, but raises TypeError"),
    ],
)
def test_a_wrong_part_is_refused_in_one_sentence_before_any_work(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--clients", "8", "--rounds", "2", option, value]) == 2
    sentence = capsys.readouterr().err
    assert said in sentence
    assert sentence.count("\n") == 1
    assert not Path("runs").exists()


def test_lists_name_the_forms_and_where_each_part_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("datasets", "models", "methods", "controllers", "generators"):
        assert main(["list", name]) == 0
        printed = capsys.readouterr().out
        assert "from" in printed
        assert "built in" in printed
