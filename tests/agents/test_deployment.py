"""A frozen controller and what it sees are enough to deploy; and it remembers whose data trained it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import TrainingResult, load_controller, train
from agents.validation import Validation
from envs import DPilotEnv, Setting, make_core, run_to_the_end
from envs.references import ReferenceAccuracies
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from fl_core.run.federation import Federation
from tests.agents.conftest import SHORT, TINY

RAW = ("global_accuracy", "personal_accuracy", "global_loss", "train_loss", "update_norm", "clipped_share")


def test_a_saved_controller_acts_from_observations_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On target clients, with the reference runs of rewards, all evaluation and all raw figures taken away."""
    controller = load_controller(saved)
    settings: dict[str, Any] = {**TINY, **controller.view, "instances": "test"}

    def actions_of(env: DPilotEnv) -> list[float]:
        controller.check(env)
        observation, _ = env.reset(options={"instance": 3_000_000})
        actions, ended = [], False
        while not ended:
            action, _ = controller.predict(observation, deterministic=True)
            actions.append(float(action[0]))
            observation, _, ended, _, _ = env.step(action)
        return actions

    expected = actions_of(DPilotEnv(**settings))
    run_round = Federation.run_round

    def without_raw_figures(self: Federation, *arguments: Any, **named: Any) -> Any:
        report = run_round(self, *arguments, **named)
        for name in RAW:
            if name in report.figures:
                report.figures[name] = np.full(self.runs, np.nan)
        return report

    def refuse(*_: Any) -> None:
        raise AssertionError("a reference run")

    monkeypatch.setattr(ReferenceAccuracies, "find", refuse)
    monkeypatch.setattr(Federation, "run_round", without_raw_figures)
    monkeypatch.setattr(Federation, "evaluate", lambda self, mode="": {"global_accuracy": np.full(self.runs, np.nan)})
    deployed = DPilotEnv(**settings, reward="final-accuracy")
    assert deployed.core.task.federation.population == "target"
    assert actions_of(deployed) == expected
    assert len(expected) == 2


def test_training_and_validation_meet_proxies_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[str] = set()
    begin = Federation.begin

    def spied(self: Federation, rows: Any, settings: list[RunSettings], prepared: Any) -> None:
        met.add(self.config.population)
        begin(self, rows, settings, prepared)

    monkeypatch.setattr(Federation, "begin", spied)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = train(TINY, SHORT, tmp_path / "run")
    assert met == {"proxy"}
    assert result.controller.population == "proxy"


def test_a_saved_controller_remembers_whose_data_trained_it(trained: TrainingResult, tmp_path: Path) -> None:
    record = json.loads((trained.folder / "controller.json").read_text())
    assert record["settings"]["population"] == "proxy"
    assert "of proxy clients" in load_controller(trained.folder).trained_on
    with pytest.warns(UserWarning, match="training on target clients costs them privacy"):
        result = train({**TINY, "population": "target"}, SHORT, tmp_path / "run")
    controller = load_controller(result.folder)
    assert controller.population == "target"
    assert "of target clients" in controller.trained_on
    assert (
        Validation(Setting.from_record(controller.blueprint.settings), 1)._core.task.federation.population == "target"
    )


def test_a_controller_from_before_populations_was_trained_on_all(trained: TrainingResult) -> None:
    blueprint = trained.controller.blueprint
    settings = {name: value for name, value in blueprint.settings.items() if name != "population"}
    old = type(trained.controller)(
        type(blueprint)(**{**vars(blueprint), "settings": settings}), trained.controller.policy
    )
    assert old.population == "all"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decision_rounds": 1}, "decides every 2 rounds, but decision_rounds of the environment is 1"),
        ({"signals": "paper"}, "was trained on the signals"),
        ({"context": "visible"}, "was trained on the signals"),
        ({"knobs": "clip_change"}, "was trained on the signals"),
    ],
)
def test_whoever_plays_it_is_told_what_it_was_not_made_for(saved: Path, changes: dict[str, Any], words: str) -> None:
    controller = load_controller(saved)
    core = make_core(1, **{**TINY, **controller.view, "reward": "final-accuracy", **changes})
    with pytest.raises(InputError, match=words):
        run_to_the_end(core, controller, [RunSettings(seed=3)], lambda _: None)
    with pytest.raises(InputError, match=words):
        controller.for_env(core)


def test_another_task_or_budget_is_played(saved: Path) -> None:
    controller = load_controller(saved)
    core = make_core(1, **{**TINY, **controller.view, "reward": "final-accuracy", "epsilon": 3.0, "model": "mlp-small"})
    run_to_the_end(core, controller.for_env(core), [RunSettings(seed=3)], lambda _: None)
    assert core.finished.all()
