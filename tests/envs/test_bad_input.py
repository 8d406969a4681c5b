"""Requests that cannot be carried out get one sentence, before any work starts."""

from __future__ import annotations

import math
import pickle
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from envs import DPilotEnv
from fl_core.base.errors import InputError
from tests.envs.conftest import TINY, make_env

CASES: list[tuple[dict[str, Any], str]] = [
    ({"task": "digit"}, "task 'digit' is unknown; did you mean digits"),
    ({"knobs": "clip"}, "knob 'clip' is unknown; did you mean clip_norm"),
    ({"knobs": "clip_norm,"}, "knob '' is unknown"),
    ({"knobs": 3}, "knobs is 3, but it must be text"),
    ({"knobs": ["clip_norm"]}, r"knobs is \['clip_norm'\], but it must be text"),
    ({"signals": "publik"}, "signals 'publik' is unknown; did you mean public"),
    ({"reward": "advantages"}, "reward 'advantages' is unknown; did you mean advantage"),
    ({"instances": "tests"}, "instances 'tests' is unknown; did you mean test"),
    ({"instance_count": 0}, "instance_count is 0, but it must be a whole number of at least 1"),
    ({"decision_rounds": 0}, "decision_rounds is 0"),
    ({"decision_rounds": 1.5}, r"decision_rounds is 1\.5"),
    ({"epsilon": 0}, r"epsilon is 0\.0, but it must be above 0"),
    ({"epsilon": -1.0}, r"epsilon is -1\.0"),
    ({"epsilon": math.nan}, "epsilon is nan"),
    ({"epsilon": "plenty"}, "epsilon is 'plenty', but it must be a number"),
    ({"delta": 1.0}, r"delta is 1\.0, but it must"),
    ({"delta": 0.0}, r"delta is 0\.0"),
    ({"sampling_rate": 0.0}, "sampling_rate is 0"),
    ({"sampling_rate": 1.5}, r"sampling_rate is 1\.5, but it must"),
    ({"sampling_rate": math.nan}, "sampling_rate is nan"),
    ({"rounds": 0}, "rounds is 0, but it must be a whole number of at least 1"),
    ({"rounds": -3}, "rounds is -3"),
    ({"rounds": 2.5}, r"rounds is 2\.5, but it must be a whole number"),
    ({"rounds": True}, "rounds is True, but it must be a whole number"),
    ({"clients": 0}, "clients is 0"),
    ({"clients": 100_000}, "clients"),
    ({"local_steps": 0}, "local_steps is 0"),
    ({"learning_rate": 0.0}, "learning_rate is 0"),
    ({"method": "dp-fedavgg"}, "method 'dp-fedavgg' is unknown; did you mean dp-fedavg"),
    ({"method": 3}, "method is 3, but it must be text"),
    ({"method": "local-only"}, "knob 'clip_norm' does not exist in method 'local-only'; it has none at all"),
    (
        {"method": "fedavg", "epsilon": math.inf},
        "knob 'clip_norm' does not exist in method 'fedavg'; it has server_learning_rate",
    ),
    ({"method": "fedavg", "knobs": "server_learning_rate"}, "method 'fedavg' adds no noise"),
    ({"partition": "shards(0)"}, "shards"),
    ({"partition": "dirichlet(-1)"}, "dirichlet"),
    ({"partition": "pathological"}, "partition 'pathological'"),
    ({"dataset": "digitz"}, "did you mean digits"),
    ({"model": "mlpp"}, "did you mean mlp"),
    ({"placement": "centre"}, "did you mean central"),
    ({"sampling": "poison"}, "did you mean poisson"),
    ({"executor": "vectorised"}, "did you mean vectorized"),
    ({"telemetry_share": 1.0}, r"telemetry_share is 1\.0"),
    ({"epsilom": 3}, "setting 'epsilom' is unknown; did you mean epsilon"),
    ({"signal": "public"}, "setting 'signal' is unknown; did you mean .*signals"),
]


@pytest.mark.filterwarnings("ignore:delta is")
@pytest.mark.parametrize(("settings", "words"), CASES, ids=[str(settings) for settings, _ in CASES])
def test_refused_in_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        DPilotEnv(**TINY | settings)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_the_sentence_survives_gymnasium() -> None:
    with pytest.raises(InputError, match="did you mean digits"):
        gym.make("DPilot/Clip-v0", task="digit")
    with pytest.raises(InputError, match="did you mean digits"):
        gym.make_vec("DPilot/Clip-v0", num_envs=2, task="digit")


@pytest.mark.parametrize("name", ["gamma", "n_steps", "seed"])
def test_an_agent_s_setting_is_refused_once_and_by_name(name: str) -> None:
    for make in (gym.make, partial(gym.make_vec, num_envs=2)):
        with pytest.raises(InputError, match=f"^setting '{name}' is unknown") as caught:
            make("DPilot/Clip-v0", **{name: 0.9})
        assert str(caught.value).count("is unknown") == 1
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_none_keeps_the_task_s_own_value() -> None:
    env = make_env(epsilon=None, signals=None)
    assert env.core.federation.config.epsilon == 7.5
    assert env.core.spec.signals == "public"


def test_infinite_epsilon_may_be_spelled_out() -> None:
    assert make_env(epsilon="inf").core.federation.config.epsilon == math.inf


@pytest.mark.parametrize("action", [[0.0, 0.0], []])
def test_actions_of_another_size_are_refused(action: list[float]) -> None:
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(InputError, match=r"actions have shape \(1, .\), but it must be \(1, 1\): runs and knobs"):
        env.step(np.array(action, dtype=np.float32))
