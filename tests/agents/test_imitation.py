"""Policies that begin as clones of a controller: what they are fitted to, how well, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents import TrainingConfig, imitation, resume, train
from agents.algorithms import ALGORITHMS
from agents.checkpoint import load_checkpoint
from agents.imitation import clone, decisions_of
from envs import EnvCore, Setting
from envs.instances import instance_seeds
from fl_core.base.errors import InputError
from policies import make_controller
from tests.agents.conftest import SHORT, TINY

KNOBS = "clip_median,server_learning_rate,average_weight"
SMALL: dict[str, Any] = {"clients": 10, "rounds": 8, "partition": "iid", "executor": "vectorized"}


def setting_of(**changes: Any) -> Setting:
    return Setting.of(**SMALL, signals="accounted", instances="train", reward="final-accuracy", **changes)


def test_decisions_are_those_of_the_controller_in_the_policy_s_own_signals_and_knobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(imitation, "IMITATED", 3)
    asked = setting_of(knobs=KNOBS)
    found = decisions_of("probe", asked, 0, lambda done: None)
    own = EnvCore(asked)
    assert found.rounds == 3 * SMALL["rounds"]
    assert found.observations.shape == (found.rounds * (1 + imitation.COPIES), len(own.features))
    names = [one.name for one in own.features]
    first = found.observations[: found.rounds]
    assert np.unique(first[:, names.index("round_fraction")]).tolist() == [2 * done / 8 - 1 for done in range(8)]
    rate, weight = found.actions[:, 1], found.actions[:, 2]
    assert set(np.round(own.knobs[1].decode(rate[:6]), 3)) == {0.05}, "three runs probe for two rounds"
    assert np.allclose(own.knobs[2].decode(weight), 1.0), "the probe leaves the average alone"


def test_redrawn_copies_are_answered_as_the_controller_answers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "IMITATED", 2)
    asked = setting_of(knobs="clip_median,budget_pace,telemetry_share,server_learning_rate")
    found = decisions_of("probe:1.2:0.3", asked, 0, lambda done: None)
    copies = found.observations[found.rounds :]
    answers = make_controller("probe:1.2:0.3", EnvCore(asked)).predict(copies)[0]
    np.testing.assert_array_equal(found.actions[found.rounds :], answers)
    assert (np.abs(copies) > 1).any(), "some entries lie where no run goes"


def test_a_clone_acts_like_its_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "IMITATED", 8)
    monkeypatch.setattr(imitation, "STEPS", 1500)
    asked = setting_of(knobs=KNOBS)
    found = decisions_of("probe", asked, 0, lambda done: None)
    size = found.observations.shape[1]
    torch.manual_seed(0)
    options = {"network": (32, 32), "activation": "tanh", "log_std_init": -2.0}
    policy: Any = ALGORITHMS["ppo"].policy(spaces.Box(-2, 2, (size,)), spaces.Box(-1, 1, (3,)), options)
    before = np.sqrt(np.mean((policy.predict(found.observations, deterministic=True)[0] - found.actions) ** 2))
    error = clone(policy, found)
    after = np.sqrt(np.mean((policy.predict(found.observations, deterministic=True)[0] - found.actions) ** 2))
    assert after == pytest.approx(error, rel=0.2)
    assert error < 0.1 < before


def test_a_controller_with_a_memory_is_imitated_by_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "IMITATED", 2)
    found = decisions_of("random:3", Setting.of(**SMALL, instances="train"), 0, lambda done: None)
    assert len(found.observations) == found.rounds, "what it would do elsewhere depends on what it remembers"


def test_a_training_begins_as_a_clone_counts_its_runs_and_resumes_without_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imitation, "IMITATED", 4)
    monkeypatch.setattr(imitation, "STEPS", 300)
    config = TrainingConfig(**{**vars(SHORT), "imitate": "exponential-decay:4:0.5", "log_std_init": -3.0})
    whole = train(TINY, config, tmp_path / "whole")
    assert whole.cost.imitation == 4 * TINY["rounds"]
    assert whole.controller.training_rounds == whole.cost.total
    with pytest.raises(KeyboardInterrupt):
        train(TINY, config, tmp_path / "broken", on_update=_stop_after(1))
    monkeypatch.setattr(imitation, "decisions_of", None)
    again = resume(tmp_path / "broken")
    assert [one["validation_accuracy"] for one in again.history] == [
        one["validation_accuracy"] for one in whole.history
    ]
    assert load_checkpoint(tmp_path / "broken").progress.cost == whole.cost


def _stop_after(update: int) -> Any:
    def stop(entry: dict[str, Any]) -> None:
        if entry["update"] == update:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"imitate": "prob"}, "imitate 'prob' is unknown"),
        ({"imitate": "mine.py:MyClip"}, "imitate 'mine.py' is unknown"),
        ({"imitate": "fixed:1+mine.py:MyClip"}, "imitate 'mine.py' is unknown"),
        ({"imitate": "budget-linear+best-fixed"}, "needs clip norms that no search or calibration gives"),
        ({"imitate": "best-fixed"}, "needs clip norms that no search or calibration gives"),
        ({"imitate": "probe", "algo": "sac"}, "imitate is probe, but algo is 'sac'; it is for ppo and a2c"),
        ({"instance_baseline": True, "algo": "td3"}, "instance_baseline is True, but algo is 'td3'"),
        ({"instance_baseline": True, "episodes_per_instance": 1}, "it must be 2 at least"),
    ],
)
def test_what_cannot_be_imitated_is_refused_in_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        TrainingConfig(**changes)
    assert words in str(caught.value)


def test_the_instances_that_are_played_are_training_instances_of_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []
    monkeypatch.setattr(imitation, "IMITATED", 5)
    original = EnvCore.reset

    def noted(self: EnvCore, rows: Any, settings: Any) -> None:
        played.extend(one.seed for one in settings)
        original(self, rows, settings)

    monkeypatch.setattr(EnvCore, "reset", noted)
    decisions_of("fixed", setting_of(knobs="clip_norm", instance_count=3), 0, lambda done: None)
    assert played == instance_seeds("train", 3)
