"""Which instance a reset plays: every face agrees, and nothing but a name leaves the spec's set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from envs import INSTANCE_SETS, DPilotEnv, DPilotProcessVecEnv, DPilotVecEnv, DPilotVectorEnv
from fl_core.base.errors import InputError

FEW: dict[str, Any] = {"rounds": 1, "clients": 8, "reward": "final-accuracy", "executor": "vectorized"}
Reset = Callable[[Any, dict[str, Any] | None], list[int]]
"""From a seed and options to the instances that the rows play."""


def of_gymnasium(env: Any, seed: Any, options: dict[str, Any] | None) -> list[int]:
    return np.atleast_1d(env.reset(seed=seed, options=options)[1]["seed"]).tolist()  # type: ignore[no-any-return]


def of_stable_baselines3(env: VecEnv, seed: Any, options: dict[str, Any] | None) -> list[int]:
    if seed is not None:
        env.seed(seed)
    env.set_options(options)
    env.reset()
    return [info["seed"] for info in env.reset_infos]


FACES: dict[str, Callable[..., Reset]] = {
    "single": lambda **own: partial(of_gymnasium, DPilotEnv(**FEW, **own)),
    "vector": lambda **own: partial(of_gymnasium, DPilotVectorEnv(2, **FEW, **own)),
    "sync": lambda **own: partial(
        of_gymnasium, gym.make_vec("DPilot/Clip-v0", 2, vectorization_mode="sync", **FEW, **own)
    ),
    "rows": lambda **own: partial(of_stable_baselines3, DPilotVecEnv(2, **FEW, **own)),
    "dummy": lambda **own: partial(
        of_stable_baselines3, DummyVecEnv([lambda: DPilotEnv(**FEW, **own) for _ in range(2)])
    ),
    "processes": lambda **own: partial(of_stable_baselines3, DPilotProcessVecEnv(2, processes=2, **FEW, **own)),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("which", INSTANCE_SETS)
def test_a_seed_chooses_within_the_set_and_repeats_itself(face: str, which: str) -> None:
    first = INSTANCE_SETS[which]
    reset = FACES[face](instances=which, instance_count=5)
    drawn = []
    for _ in range(2):
        rows = len(reset(3, None))
        last = 4 if face == "sync" else np.int64(4)  # Gymnasium's own vector takes no other whole numbers
        assert reset(last, None) == [first + 4, first][:rows], "on from the beginning of the set"
        drawn.append([reset(None, None) for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert {one for rows in drawn[0] for one in rows} <= set(range(first, first + 5))


@pytest.mark.parametrize("face", FACES)
def test_a_named_instance_is_played_whatever_the_seed(face: str) -> None:
    reset = FACES[face](instances="test")
    assert set(reset(3, {"instance": np.int64(41)})) == {41}
    assert set(reset(None, {"instance": 41, "epsilon": 3.0})) == {41}
    assert 41 not in reset(3, None), "an option holds for one reset"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("value", [1.0, True, -1, "7", np.float32(2)])
def test_names_and_seeds_that_are_no_whole_numbers_are_refused(face: str, value: Any) -> None:
    reset = FACES[face]()
    with pytest.raises(InputError, match=r"instance is .* but it must be a whole number of at least 0"):
        reset(0, {"instance": value})
    if face in ("single", "vector", "rows", "processes") and not isinstance(value, str) and value is not True:
        with pytest.raises(InputError, match=r"seed is .* but it must be a whole number of at least 0"):
            reset(value, None)


def test_vectors_take_a_seed_or_a_name_for_each_row() -> None:
    env = DPilotVectorEnv(3, **FEW)
    assert of_gymnasium(env, [5, None, np.int64(7)], None)[::2] == [1_000_005, 1_000_007]
    assert of_gymnasium(env, None, {"instance": [41, 42, 43]}) == [41, 42, 43]
    mask = np.array([False, True, False])
    env.reset(options={"instance": [1, 2, 3], "reset_mask": mask})
    assert [one.seed for one in env.core.federation.settings] == [41, 2, 43]
    with pytest.raises(InputError, match="2 seeds for 3 environments"):
        env.reset(seed=[1, 2])
    with pytest.raises(InputError, match="instance names 2 instances for 3 environments"):
        env.reset(options={"instance": [1, 2]})


def test_an_assigned_instance_outlasts_seeds_and_gives_way_to_a_name() -> None:
    env = DPilotVecEnv(2, **FEW)
    env.set_instances([7, 8])
    assert of_stable_baselines3(env, 3, None) == [7, 8]
    assert of_stable_baselines3(env, None, {"instance": 41}) == [41, 41]
    assert of_stable_baselines3(env, None, None) == [7, 8]


def test_seeded_vectors_of_other_libraries_stay_in_the_test_set() -> None:
    env = make_vec_env("DPilot/Clip-v0", n_envs=2, seed=0, env_kwargs=FEW | {"instances": "test"})
    env.reset()
    assert [info["seed"] for info in env.reset_infos] == [3_000_000, 3_000_001]
