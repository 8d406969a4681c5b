"""`dpilot rank` orders finished trainings by the validation they have kept, and mixes no problems."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents import TrainingResult, save_controller, train
from experiments import main
from tests.agents.conftest import SHORT, TINY


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(TINY, SHORT, tmp_path_factory.mktemp("rank") / "run")


@pytest.fixture
def saved(result: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Save copies of one training that claim other accuracies, seeds and settings."""
    monkeypatch.chdir(tmp_path)
    blueprint = result.controller.blueprint

    def save(name: str, accuracies: list[float], settings: Any = None, **training: Any) -> str:
        facts = {"validation_accuracies": accuracies, "validation_accuracy": sum(accuracies) / len(accuracies)}
        changed = replace(
            blueprint,
            training={**blueprint.training, **facts, **training},
            settings={**blueprint.settings, **(settings or {})},
        )
        save_controller(Path("runs", name, "controller"), changed, result.controller.tensors)
        return f"runs/{name}"

    return save


def _ranked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["rank", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_best_comes_first_with_its_interval(
    saved: Callable[..., str], capsys: pytest.CaptureFixture[str], result: TrainingResult
) -> None:
    names = [saved("low", [0.2, 0.3]), saved("high", [0.6, 0.4], seed=1), saved("middle", [0.45, 0.45], seed=2)]
    Path("runs/other").mkdir()
    [problem] = _ranked(capsys, *names, "runs/other")["problems"]
    assert [Path(one["folder"]).name for one in problem] == ["high", "middle", "low"]
    best = problem[0]
    assert best["validation_accuracy"] == pytest.approx(0.5)
    assert best["interval"] == pytest.approx([0.4, 0.6])
    assert best["training_rounds"] == result.cost.total
    assert main(["rank", *names]) == 0
    shown = capsys.readouterr().out
    assert "50.0 [40.0, 60.0]" in shown
    assert "ppo:runs/high" in shown


def test_a_training_keeps_what_its_rank_needs(result: TrainingResult, capsys: pytest.CaptureFixture[str]) -> None:
    [[one]] = _ranked(capsys, str(result.folder.parent))["problems"]
    assert one["validation_accuracy"] == result.best_score
    assert one["interval"][0] <= result.best_score <= one["interval"][1]


def test_problems_are_not_mixed_unless_asked(saved: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    names = [saved("low", [0.2, 0.3]), saved("other", [0.9, 0.9], {"epsilon": 2.0}, seed=1)]
    assert main(["rank", *names]) == 2
    sentence = capsys.readouterr().err
    assert "'runs/other' was validated with epsilon 2.0, but 'runs/low' with 7.5" in sentence
    assert sentence.count("\n") == 1
    assert [len(group) for group in _ranked(capsys, *names, "--mixed")["problems"]] == [1, 1]
    alike = saved("agent", [0.5, 0.5], {"signals": "accounted", "device": "cuda"}, seed=2)
    assert main(["rank", names[0], alike]) == 0


def test_what_cannot_be_ranked_is_said(
    saved: Callable[..., str], result: TrainingResult, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [saved("low", [0.2, 0.3]), saved("damaged", [0.2, 0.3]), "runs/unfinished", saved("imported", [0.1])]
    Path("runs/damaged/controller/controller.safetensors").write_bytes(b"")
    Path("runs/unfinished").mkdir()
    Path("runs/unfinished/checkpoint.json").write_text("{}")
    bare = replace(result.controller.blueprint, training={"seed": 0, "cost": None})
    save_controller(Path("runs/imported/controller"), bare, result.controller.tensors)
    found = _ranked(capsys, *names)
    assert [len(group) for group in found["problems"]] == [1]
    reasons = found["not_ranked"]
    assert "damaged or was exchanged" in reasons["runs/damaged"]
    assert "dpilot train --resume runs/unfinished" in reasons["runs/unfinished"]
    assert "no validation was kept" in reasons["runs/imported"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "folders is empty"),
        (["nowhere"], "'nowhere' does not exist"),
        (["."], "There is no finished training with its validation in '.'"),
        ([".", "../" + "{name}"], "is named twice"),
    ],
)
def test_nothing_to_rank_is_one_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rank", *(one.format(name=tmp_path.name) for one in arguments)]) == 2
    sentence = capsys.readouterr().err
    assert words in sentence
    assert sentence.count("\n") == 1
