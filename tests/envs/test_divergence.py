"""Policies that return no number: `step` refuses them on every face, and loops end the run as diverged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import TD3
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from envs import (
    NOT_MEASURED,
    DPilotEnv,
    DPilotProcessVecEnv,
    DPilotVecEnv,
    DPilotVectorEnv,
    EnvCore,
    make_core,
    run_to_the_end,
)
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings

FEW: dict[str, Any] = {
    "rounds": 3,
    "clients": 8,
    "reward": "final-accuracy",
    "executor": "vectorized",
    "knobs": "clip_norm,server_learning_rate",
}
FACES: dict[str, tuple[Callable[[], Any], int]] = {
    "single": (lambda: DPilotEnv(**FEW), 0),
    "vector": (lambda: DPilotVectorEnv(3, **FEW), 3),
    "sync": (lambda: gym.make_vec("DPilot/Clip-v0", 3, vectorization_mode="sync", **FEW), 3),
    "rows": (lambda: DPilotVecEnv(3, **FEW), 3),
    "processes": (lambda: DPilotProcessVecEnv(3, processes=2, **FEW), 3),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_action_that_is_no_finite_number_is_refused_by_step(face: str, value: float) -> None:
    make, rows = FACES[face]
    env = make()
    env.reset()
    actions = np.zeros((rows, 2) if rows else 2, dtype=np.float32)
    actions[..., 1][-1 if rows else ...] = value  # one coordinate of one row
    with pytest.raises(InputError, match=r"knob 'server_learning_rate'.* must be a finite number; .* has diverged"):
        env.step(actions)
    env.close()


def test_a_refused_step_changes_nothing() -> None:
    core = make_core(2, **FEW)
    core.reset([0, 1], [RunSettings(seed=5), RunSettings(seed=6)])
    core.step(np.full((2, 2), 0.3))
    before = core.state_dict()
    with pytest.raises(InputError, match="of run 1 is inf"):
        core.step(np.array([[0.0, 0.0], [0.1, math.inf]]))
    after = core.state_dict()
    assert after["plain"] == before["plain"]
    for name, tensor in before["tensors"].items():
        np.testing.assert_array_equal(after["tensors"][name].numpy(), tensor.numpy(), err_msg=name)


def test_a_diverged_td3_gets_no_score() -> None:
    settings = {"rounds": 3, "clients": 8, "reward": "final-accuracy"}
    model = TD3("MlpPolicy", DPilotVecEnv(1, **settings), device="cpu")
    for weight in model.actor.parameters():
        nn.init.constant_(weight, math.nan)
    with pytest.raises(InputError, match="knob 'clip_norm'"):
        evaluate_policy(model, DPilotVecEnv(1, **settings), 1, warn=False)


class Failing:
    """A policy whose actions are NaN in one run from a decision on."""

    def __init__(self, row: int, decision: int):
        self.row, self.decision = row, decision

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        done = 0 if state is None else state
        actions = np.full((len(observation), 2), 0.2)
        if done >= self.decision:
            actions[self.row, 0] = math.nan
        return actions, done + 1


def played(policy: Any) -> EnvCore:
    core = make_core(3, **FEW)
    run_to_the_end(core, policy, [RunSettings(seed=seed) for seed in (5, 6, 7)], lambda _: None)
    return core


@pytest.mark.parametrize("decision", [0, 1, 2])
def test_a_run_whose_policy_fails_ends_there_as_diverged_and_the_others_go_on(decision: int) -> None:
    whole, core = played(Failing(0, 99)), played(Failing(1, decision))
    assert [core.diverged(row) for row in range(3)] == [False, True, False]
    assert core.divergence(1) == f"in round {decision + 1} its controller returned no finite number"
    assert core.divergence(0) == ""
    assert core.rounds.tolist() == [3, decision, 3]
    for row in (0, 2):
        assert core.history[row] == whole.history[row]
    assert core.final_accuracy(1) == core.final_figures(1)["global_accuracy"] > 0  # of the model as it stands
    core.reset([1], [RunSettings(seed=6)])
    assert not core.diverged(1)


def test_a_saved_state_knows_which_runs_failed() -> None:
    core, again = played(Failing(1, 1)), make_core(3, **FEW)
    again.load_state_dict(core.state_dict())
    assert [again.diverged(row) for row in range(3)] == [False, True, False]


def test_info_tells_the_share_of_the_action_that_saturates() -> None:
    env = DPilotEnv(**FEW)
    _, info = env.reset(seed=0)
    assert info["actions_outside"] == NOT_MEASURED
    clips = []
    for action, share in (([0.0, 1.0], 0.0), ([1.5, -1.0], 0.5), ([9.0, -1.1], 1.0)):
        *_, info = env.step(np.array(action, dtype=np.float32))
        assert info["actions_outside"] == share
        clips.append(info["clip_norm"])
    assert clips[1] == clips[2] == 8.0
