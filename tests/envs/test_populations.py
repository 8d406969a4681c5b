"""Trainings meet proxies, tests meet targets, and nobody meets targets without having asked for them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch

from envs import Setting, make_core
from envs.core import EnvCore
from envs.fleet import Fleet
from envs.instances import INSTANCE_SETS
from envs.tasks import TASKS, find_task
from fl_core.base.errors import InputError
from fl_core.data.datasets import load_dataset
from fl_core.run.config import FederationConfig
from tests.envs.conftest import TINY


def _population(core: EnvCore) -> str:
    """Name the population whose images the federation holds, by the images themselves."""
    for name in ("all", "proxy", "target"):
        if torch.equal(core.federation._dataset.train_images, load_dataset("digits", population=name).train_images):
            return name
    raise AssertionError


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "proxy"),
        ({"instances": "train"}, "proxy"),
        ({"instances": "validation"}, "proxy"),
        ({"instances": "test"}, "target"),
        ({"instances": "test", "population": None}, "target"),
        ({"population": "target"}, "target"),
        ({"instances": "test", "population": "proxy"}, "proxy"),
        ({"population": "all"}, "all"),
    ],
)
def test_instance_sets_choose_the_clients_unless_told_otherwise(settings: dict[str, Any], expected: str) -> None:
    core = make_core(1, **TINY, **settings)
    assert core.task.federation.population == expected
    assert _population(core) == expected


def test_gymnasium_trains_on_proxies_and_tests_on_targets() -> None:
    training: Any = gym.make("DPilot/Clip-v0", **TINY)
    testing: Any = gym.make("DPilot/Clip-digits-v0", instances="test", rounds=5)
    assert _population(training.unwrapped.core) == "proxy"
    assert _population(testing.unwrapped.core) == "target"


def test_every_set_and_task_has_its_population() -> None:
    for name in INSTANCE_SETS:
        make_core(1, **TINY, instances=name)
    assert {task.federation.population for task in TASKS.values()} == {"target"}
    assert FederationConfig().population == "all"


def test_a_task_of_ones_own_keeps_its_population() -> None:
    task = find_task("digits", population="all", rounds=3)
    assert _population(EnvCore(Setting(task))) == "all"


def test_references_of_the_reward_are_runs_of_the_same_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def spied(config: FederationConfig, *arguments: Any) -> Fleet:
        made.append(config.population)
        return Fleet(config, *arguments)

    monkeypatch.setattr("envs.references.Fleet", spied)
    for population in ("proxy", "target"):
        make_core(1, **TINY, population=population).references([1])
    assert made == ["proxy", "target"]


def test_a_state_is_not_continued_on_other_clients() -> None:
    saved = make_core(1, **TINY, reward="final-accuracy").state_dict()
    with pytest.raises(InputError, match="population of the saved run is proxy, but here it is target"):
        make_core(1, **TINY, reward="final-accuracy", population="target").load_state_dict(saved)


def test_an_unknown_population_is_refused() -> None:
    with pytest.raises(InputError, match="population 'proxies' is unknown; did you mean proxy"):
        make_core(1, **TINY, population="proxies")
