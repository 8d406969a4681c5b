"""`dpilot import` on the command line: what comparisons take afterwards, and what it refuses with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from envs import DPilotVecEnv
from experiments import Comparison, main

SMALL: dict[str, Any] = {"clients": 6, "rounds": 2}
OPTIONS = ["--clients", "6", "--rounds", "2"]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PPO:
    """A plain model, saved as mine.zip in the working directory."""
    monkeypatch.chdir(tmp_path)
    made = PPO("MlpPolicy", DPilotVecEnv(2, **SMALL), n_steps=2, batch_size=4, device="cpu").learn(4)
    made.save("mine")
    return made


def test_a_plain_model_is_compared_and_its_cost_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "mine.zip", *OPTIONS]) == 0
    shown = capsys.readouterr().out
    assert "No pickle was read." in shown
    assert "an unknown number of rounds" in shown
    typed = next(line for line in shown.splitlines() if line.startswith("To compare it: "))
    assert typed.endswith("ppo:runs/mine")
    assert main(["compare", *OPTIONS, "--controllers", "fixed:1", "ppo:runs/mine", "--seeds", "2"]) == 0
    assert "unknown" in capsys.readouterr().out
    [path] = Path("runs").glob("*compare*/comparison.json")
    result = Comparison.read(path).controller("ppo:runs/mine")
    assert (result.training_rounds, result.trainings) == (None, ("mine",))
    assert result.learned
    report = path.with_name("report.md").read_text()
    assert "unknown" in report
    assert "imported from mine.zip (stable-baselines3" in report


def test_a_cost_that_is_given_is_counted() -> None:
    assert main(["import", "mine.zip", *OPTIONS, "--training-rounds", "8", "--name", "counted"]) == 0
    assert main(["run", *OPTIONS, "--controller", "ppo:runs/counted"]) == 0
    [path] = Path("runs").glob("digits__ppo*/summary.json")
    assert json.loads(path.read_text())["training_rounds"] == 8


def test_a_zip_in_place_of_a_controller_gives_the_command_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *OPTIONS, "--controllers", "fixed:1", "ppo:mine.zip", "--seeds", "2"]) == 2
    sentence = capsys.readouterr().err
    assert "dpilot import mine.zip --name NAME" in sentence
    assert sentence.count("\n") == 1
    assert not Path("runs").exists()


def test_json_describes_the_controller(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "mine.zip", *OPTIONS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == "runs/mine"
    assert found["training"]["cost"] is None
    assert found["settings"]["rounds"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "file is missing"),
        (["nothing.zip"], "does not exist"),
        (["mine.zip", "--signals", "paper"], "trained on observations of shape"),
        (["mine.zip", "--knobs", "budget_pace,clip_norm"], "trained on observations of shape"),
        (["mine.zip", "--algo", "sac"], "was trained with ppo, not with sac"),
        (["mine.zip", "--algo", "pppo"], "algo 'pppo' is unknown"),
        (["mine.zip", "--training-rounds", "-1"], "training_rounds is -1"),
        (["mine.zip", "--normalization", "nothing.pkl"], "does not exist"),
        (["mine.zip", "--normalization", "mine.zip"], "is a pickle, which may run any code"),
        (["mine.zip", "--normalization", "mine.zip", "--trust"], "could not be loaded"),
        (["mine.zip", "--name", "../mine"], "name is '../mine'"),
        (["mine.zip", "--decision-rounds", "9"], "decision_rounds"),
        (["mine.zip", "--train-on", "nobody"], "train_on 'nobody' is unknown"),
        (["mine.zip", "--task", "digit"], "task 'digit' is unknown"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", *arguments, *OPTIONS]) == 2
    sentence = capsys.readouterr().err
    assert words in sentence
    assert sentence.count("\n") == 1
    assert not Path("runs").exists()


def test_a_name_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "mine.zip", *OPTIONS]) == 0
    assert main(["import", "mine.zip", *OPTIONS]) == 2
    assert "'runs/mine' exists already" in capsys.readouterr().err
