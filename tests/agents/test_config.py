from __future__ import annotations

from typing import Any

import pytest

from agents import TrainingConfig
from agents.curricula import Instances
from envs.instances import instance_seeds
from fl_core.base.errors import InputError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algo", "pppo"),
        ("environments", 1),
        ("episodes", 0),
        ("timesteps", -1),
        ("learning_rate", float("nan")),
        ("gamma", 1.5),
        ("gae_lambda", -0.1),
        ("log_std_init", float("inf")),
        ("network", ()),
        ("network", (0,)),
        ("validation_instances", 2.5),
        ("parallel", "threads"),
        ("device", "tpu"),
        ("vf_coef", -1.0),
    ],
)
def test_bad_values_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=field):
        TrainingConfig(**{field: value})


def test_near_names_are_offered() -> None:
    with pytest.raises(InputError, match="did you mean ppo"):
        TrainingConfig(algo="PPPO".lower())


def test_length_is_whole_updates() -> None:
    assert TrainingConfig(environments=8, episodes=160).updates(decisions=10) == 20
    assert TrainingConfig(environments=8, episodes=161).updates(decisions=10) == 21
    assert TrainingConfig(environments=8, timesteps=1600).updates(decisions=10) == 20
    assert TrainingConfig(environments=8, timesteps=1).updates(decisions=10) == 1


def test_instances_are_a_permutation_for_every_pass() -> None:
    instances = Instances(count=6, seed=3, rows=4)
    played = [seed for update in range(3) for seed in instances.of_update(update)]
    assert sorted(played[:6]) == sorted(played[6:]) == instance_seeds("train", 6)
    assert played[:6] != played[6:]
    assert played == [seed for update in range(3) for seed in Instances(6, 3, 4).of_update(update)]
    assert played != [seed for update in range(3) for seed in Instances(6, 4, 4).of_update(update)]


def test_rows_share_instances() -> None:
    single, shared = Instances(count=8, seed=3, rows=4), Instances(count=8, seed=3, rows=4, repeats=2)
    first, second, third, fourth = single.of_update(0)
    assert shared.of_update(0) == [first, first, second, second]
    assert shared.of_update(1) == [third, third, fourth, fourth]
    assert Instances(count=8, seed=3, rows=4, repeats=3).of_update(0) == [first, first, first, second]
    assert Instances(count=8, seed=3, rows=4, repeats=9).of_update(1) == [second] * 4
