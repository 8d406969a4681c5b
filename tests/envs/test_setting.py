"""A setting is read in one place, says everything that an environment is made of, and comes back from its record."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import subprocess
import sys
from typing import Any

import pytest

from envs import EnvSpec, Setting, make_core
from envs.tasks import TASKS, Task
from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig

OTHERS: dict[str, Any] = {
    "knobs": "none", "signals": "paper", "reward": "final-accuracy", "decision_rounds": 2, "instances": "test",
    "instance_count": 3, "generator": "scale", "context": "visible", "evaluate_every_round": True,
    "dataset": "mnist5k", "model": "mlp-wide", "method": "fedper", "guarantee": "as-published",
    "set": "divide_by=participants", "without": "layers", "clients": 51, "partition": "iid", "population": "all",
    "test_fraction": 0.1, "sampling": "fixed", "sampling_rate": 0.5, "rounds": 41, "local_steps": 5,
    "local_epochs": 1.0, "batch_size": 17, "optimizer": "adam", "learning_rate": 0.5, "momentum": 0.5,
    "weight_decay": 0.1, "update_scale": 2.0, "epsilon": math.inf, "delta": 1e-6, "placement": "local",
    "client_epsilon": "2,7.5", "telemetry_share": 0.1, "telemetry": "accuracy", "bit_noise": 100.0,
    "evaluation": "whole", "evaluation_samples": 10, "executor": "sequential", "memory_limit_mib": 9,
    "evaluation_clients": 7, "client_memory_mib": 8, "image_memory_mib": 7,
    "device": "cpu", "data_root": "elsewhere", "adjacency": "zero-out", "noise_schedule": "adaptive", "noise": "secret",
    "noise_multiplier": 2.0, "augmentation": "flip", "input_normalization": "0.5/0.5",
}  # fmt: skip
"""Another value of every field."""


def another(name: str) -> Setting:
    base = {"method": "fedglp-adp"} if name == "without" else {}
    return Setting.of(**base).replace(**{name: OTHERS[name]})


def test_every_field_is_in_the_record_and_in_the_key() -> None:
    names = {field.name for kind in (EnvSpec, FederationConfig) for field in dataclasses.fields(kind)}
    assert set(OTHERS) == names
    usual = Setting.of()
    assert set(usual.as_record()) == names | {
        "task", "default_clip_norm", "lowest_clip_norm", "highest_clip_norm",
    }  # fmt: skip
    keys = {usual.key(), *(another(name).key() for name in names)}
    task = usual.task
    for one in ({"name": "x"}, {"clip_norm": 2.0}, {"clip_range": (0.2, 8.0)}, {"clip_range": (0.1, 9.0)}):
        keys.add(Setting(dataclasses.replace(task, **one)).key())  # type: ignore[arg-type]
    assert len(keys) == 1 + len(names) + 4


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_setting_comes_back_from_its_record(name: str) -> None:
    setting = another(name)
    text = json.dumps(setting.as_record(), allow_nan=False)
    again = Setting.from_record(json.loads(text))
    assert again == setting
    assert hash(again) == hash(setting)
    assert again.key() == setting.key()
    assert pickle.loads(pickle.dumps(setting)) == setting


def test_the_key_is_the_same_in_another_process() -> None:
    code = "from envs import Setting; print(Setting.of(epsilon=3, method='feddpa').key())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == Setting.of(epsilon=3, method="feddpa").key()


def test_a_task_of_ones_own_comes_back_too() -> None:
    task = Task("table-1", "", FederationConfig(rounds=3, epsilon=math.inf), (0.5, 2.0), 0.7)
    setting = Setting(task, EnvSpec(reward="final-accuracy"))
    record = setting.as_record()
    assert Setting.from_record(record) == setting
    del record["momentum"]
    with pytest.raises(InputError, match="task 'table-1' is not built in, and its record lacks momentum"):
        Setting.from_record(record)


def test_text_is_read_as_values_are() -> None:
    text = Setting.of(task="digits", epsilon="inf", rounds="4", evaluate_every_round="true", decision_rounds="2")
    assert text == Setting.of(epsilon=math.inf, rounds=4, evaluate_every_round=True, decision_rounds=2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": [1]}, "rounds is [1], but it must be a whole number."),
        ({"rounds": 1.5}, "rounds is 1.5, but it must be a whole number."),
        ({"epsilon": math.nan}, "epsilon is nan, but it must be a number."),
        ({"model": {"a": "b"}}, "model is {'a': 'b'}, but it must be text."),
        ({"reward": ["x"]}, "reward is ['x'], but it must be text."),
        ({"evaluate_every_round": 1}, "evaluate_every_round is 1, but it must be true or false."),
        ({"decision_rounds": 41}, "decision_rounds is 41, but a run has 40 rounds only."),
        ({"reward": "advantages"}, "reward 'advantages' is unknown; did you mean advantage."),
        ({"epsilom": 3}, "setting 'epsilom' is unknown; did you mean epsilon."),
    ],
)
@pytest.mark.parametrize("read", [Setting.of, Setting.of().replace, lambda **values: Setting.from_record(values)])
def test_what_cannot_be_is_refused_in_one_sentence(read: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as refusal:
        read(**changes)
    assert str(refusal.value).startswith(sentence.rstrip("."))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"dataset": {"images": [[1]], "labels": [0]}}, "dataset is .* but it must be text"),
        (None, "A setting is None, but it must be names with values"),
        ([1], r"A setting is \[1\]"),
        ({"task": "digit"}, "task 'digit' is not built in, and its record lacks default_clip_norm"),
        ({"task": ["digits"]}, r"task is \['digits'\], but it must be text"),
        ({"lowest_clip_norm": 2.0}, "default_clip_norm is 1, but it must lie between lowest_clip_norm 2"),
        ({"highest_clip_norm": "inf"}, "highest_clip_norm is 'inf', but it must be a finite number"),
        ({"default_clip_norm": {}}, "default_clip_norm is {}, but it must be a finite number"),
    ],
)
def test_a_record_that_holds_no_setting_is_refused(record: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Setting.from_record(record)


def test_the_population_is_that_of_the_instances_unless_it_is_named() -> None:
    assert Setting.of().federation.population == "proxy"
    assert Setting.of(instances="test").federation.population == "target"
    assert Setting.of(instances="test", population="all").federation.population == "all"
    assert Setting.of(instances="test").replace(instances="train").federation.population == "target"


def test_accounted_signals_are_paid_for_as_it_runs_and_not_as_asked() -> None:
    setting = Setting.of(signals="accounted")
    assert setting.federation.telemetry_share == 0
    assert setting.task_as_run.federation.telemetry_share == 0.1
    public = setting.replace(signals="public", noise_schedule="fixed")
    assert public.task_as_run is public.task


def test_noise_is_fixed_in_advance_unless_a_knob_sets_it() -> None:
    def schedule(**settings: Any) -> str:
        return Setting.of(**settings).task_as_run.federation.noise_schedule

    assert Setting.of().federation.noise_schedule == "auto"
    assert schedule() == schedule(knobs="none") == "fixed"
    assert schedule(knobs="clip_norm,budget_pace") == schedule(noise_schedule="adaptive") == "adaptive"
    assert schedule(client_epsilon="2,7.5") == schedule(guarantee="as-published") == "adaptive"
    with pytest.raises(InputError, match="noise_schedule is fixed, but the knob budget_pace sets the noise"):
        schedule(knobs="budget_pace", noise_schedule="fixed")


def test_a_share_that_is_given_stays() -> None:
    assert Setting.of(signals="accounted", telemetry_share=0.3).task_as_run.federation.telemetry_share == 0.3


def test_what_stays_as_it_is_is_not_made_again() -> None:
    setting = Setting.of()
    assert setting.replace(reward="final-accuracy").task is setting.task
    assert setting.replace(epsilon=setting.federation.epsilon).task is setting.task
    assert setting.replace(epsilon=2).federation == dataclasses.replace(setting.federation, epsilon=2.0)
    assert setting.task.name in TASKS


def test_a_core_is_made_of_a_setting_or_of_its_keyword_arguments() -> None:
    setting = Setting.of(clients=10, delta=0.01, rounds=2)
    assert make_core(2, clients=10, delta=0.01, rounds=2).setting == setting
    assert make_core(2, setting).setting == setting
    assert make_core(2, setting, epsilon=3).setting == setting.replace(epsilon=3)


def test_a_given_noise_multiplier_takes_the_place_of_a_tasks_epsilon_and_the_reverse() -> None:
    setting = Setting.of("digits", noise_multiplier=4)
    assert setting.federation.noise_multiplier == 4
    assert setting.federation.epsilon == pytest.approx(7.5, rel=0.02)  # the task's, found by this noise
    assert setting.replace(rounds=20).federation.epsilon < setting.federation.epsilon
    back = setting.replace(epsilon=2.0)
    assert (back.federation.epsilon, back.federation.noise_multiplier) == (2, None)
    assert back == Setting.of("digits", epsilon=2.0)
    assert back.replace(noise_multiplier=4.0) == setting
    assert Setting.of("digits", noise_multiplier=None) == Setting.of("digits")


def test_a_budget_that_is_stated_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"noise_multiplier is 4\.0 and epsilon is 2\.0, but each follows"):
        Setting.of("digits", noise_multiplier=4, epsilon=2)
    with pytest.raises(InputError, match="each follows from the other"):
        Setting.of("digits").replace(noise_multiplier=4.0, epsilon=2.0)
    with pytest.raises(InputError, match="noise_multiplier is 0"):
        Setting.of("digits", noise_multiplier=0)
    record = Setting.of("digits", noise_multiplier=4).as_record()
    with pytest.raises(InputError, match=r"epsilon is 2, but rounds at noise_multiplier 4\.0 have"):
        Setting.from_record(record | {"epsilon": 2})
    with pytest.raises(InputError, match="each follows from the other"):
        make_core(setting=Setting.of("digits", noise_multiplier=4, generator="epsilon=3|4"))
