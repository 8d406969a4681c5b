"""Objects from Python are compared like controllers that are named, and what cannot act is refused in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

from agents import from_sb3
from envs import DPilotVecEnv, as_policy
from experiments import Comparison, compare_policies, summarise
from fl_core.base.errors import InputError

SMALL: dict[str, Any] = {"clients": 6, "rounds": 2, "partition": "iid", "executor": "vectorized"}


class Plain:
    """The smallest object that acts."""

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        assert deterministic
        return np.full((len(observation), 1), 0.25)


class Single:
    """Takes one observation and returns an action and a state, as some libraries do."""

    def predict(self, observation: Any, **_: Any) -> Any:
        assert observation.ndim == 1
        return [0.25], None


def _accuracies(found: Comparison, name: str) -> list[float]:
    return [one.global_accuracy for one in found.controller(name).episodes]


def test_objects_and_functions_act_alike() -> None:
    policies = {
        "plain": Plain(),
        "single": Single(),
        "function": lambda seen: np.full((len(seen), 1), 0.25),
        "of one": lambda seen: 0.25 if seen.ndim == 1 else None,
        "flat": lambda seen: np.full(len(seen), 0.25),
        "other": lambda seen: np.full((len(seen), 1), -1.0),
    }
    found = compare_policies({**policies, "fixed": "fixed:1"}, seeds=3, **SMALL)
    plain = _accuracies(found, "plain")
    for name in ("single", "function", "of one", "flat"):
        assert _accuracies(found, name) == plain
    assert _accuracies(found, "other") != plain
    assert found.controller("plain").training_rounds is None
    assert found.controller("fixed:1").training_rounds == 0
    assert len(summarise(found)) == 7


def test_a_model_is_compared_as_its_controller_is() -> None:
    settings = {**SMALL, "knobs": "clip_norm,server_learning_rate", "signals": "paper"}
    model = PPO("MlpPolicy", DPilotVecEnv(1, **settings), n_steps=4, batch_size=4, device="cpu")
    found = compare_policies({"model": model, "controller": from_sb3(model), "fixed": "fixed"}, seeds=2, **SMALL)
    assert _accuracies(found, "model") == _accuracies(found, "controller")
    assert found.controller("model").signals == "paper"
    assert found.controller("model").training_rounds is None
    alone = PPO("MlpPolicy", DPilotVecEnv(1, **SMALL), n_steps=4, batch_size=4, device="cpu")
    alone.env = None
    assert compare_policies([alone], seeds=1, **SMALL).controllers[0].name == "PPO"


def test_full_protocol_is_left_alone() -> None:
    controller = from_sb3(PPO("MlpPolicy", DPilotVecEnv(1, **SMALL), n_steps=4, batch_size=4, device="cpu"))
    assert as_policy(controller, 1) is controller


class Stateful:
    """Counts its calls in the state that it is handed."""

    def predict(self, observation: Any, state: Any = None, deterministic: bool = True) -> Any:
        count = (0 if state is None else state) + 1
        return np.full((len(observation), 1), count), count


def test_states_are_handed_on() -> None:
    policy = as_policy(Stateful(), 1)
    seen = np.zeros((2, 3))
    first, state = policy.predict(seen)
    second, state = policy.predict(seen, state)
    assert (first[0, 0], second[0, 0], state) == (1, 2, 2)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (3, "is of type int, but it must be an object with predict"),
        (Plain, "is the class Plain"),
        (lambda seen: np.zeros((len(seen), 2)), r"actions of shape \(2, 2\), but it must be \(2, 1\)"),
        (lambda seen: np.full((len(seen), 1), np.nan), "must be finite"),
        (lambda seen: seen["budget"], "failed on observations"),
        (lambda: 0, "takes other arguments"),
    ],
)
def test_what_cannot_act_is_refused_before_anything_runs(source: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        compare_policies({"mine": source}, seeds=1, **SMALL)
    assert "\n" not in str(caught.value)


def test_names_are_told_apart() -> None:
    with pytest.raises(InputError, match="names 'Plain' twice"):
        compare_policies([Plain(), Plain()], seeds=1, **SMALL)
    with pytest.raises(InputError, match="controllers is empty"):
        compare_policies([], seeds=1, **SMALL)
