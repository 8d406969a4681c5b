"""The vector face against Gymnasium's own vector of single environments, step by step in both autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from envs import DPilotVectorEnv
from fl_core.base.errors import InputError
from tests.envs.conftest import TINY, assert_same_info, make_env, random_actions

NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
SETTINGS = TINY | {"rounds": 3}


def pair(mode: AutoresetMode, count: int = 3, **settings: Any) -> tuple[DPilotVectorEnv, SyncVectorEnv]:
    """Rows of one core, and the same environments one by one."""
    chosen = SETTINGS | settings
    return (
        DPilotVectorEnv(count, autoreset_mode=mode, **chosen),
        SyncVectorEnv([lambda: make_env(**chosen) for _ in range(count)], autoreset_mode=mode),
    )


def assert_same_infos(mine: dict[str, Any], theirs: dict[str, Any], row: int) -> None:
    def of_row(infos: dict[str, Any]) -> dict[str, Any]:
        plain = {name: values for name, values in infos.items() if not name.startswith(("_", "final"))}
        return {name: values[row].item() for name, values in plain.items() if infos[f"_{name}"][row]}

    assert_same_info(of_row(mine), of_row(theirs))


def assert_same_step(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(mine[1], theirs[1], atol=0.06)  # 10 x the weight of one or two test samples
    np.testing.assert_array_equal(mine[2], theirs[2])
    np.testing.assert_array_equal(mine[3], theirs[3])
    for row in range(len(mine[1])):
        assert_same_infos(mine[4], theirs[4], row)
    for key in ("final_obs", "final_info"):
        assert (key in mine[4]) == (key in theirs[4])
    if "final_obs" in mine[4]:
        np.testing.assert_array_equal(mine[4]["_final_obs"], theirs[4]["_final_obs"])
        np.testing.assert_array_equal(mine[4]["_final_info"], theirs[4]["_final_info"])
        for row in np.flatnonzero(mine[4]["_final_obs"]):
            np.testing.assert_allclose(mine[4]["final_obs"][row], theirs[4]["final_obs"][row], rtol=1e-3, atol=1e-3)
            assert_same_infos(mine[4]["final_info"], theirs[4]["final_info"], row)


@pytest.mark.parametrize("mode", [NEXT, SAME])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"signals": "accounted", "reward": "paper", "sampling_rate": 0.4},
        {"signals": "paper", "reward": "accuracy-gain", "decision_rounds": 2, "method": "fedper"},
    ],
    ids=["advantage", "accounted", "fedper"],
)
def test_rows_equal_single_environments(mode: AutoresetMode, settings: dict[str, Any]) -> None:
    mine, theirs = pair(mode, **settings)
    first, other = mine.reset(seed=[5, 9, 2]), theirs.reset(seed=[5, 9, 2])
    np.testing.assert_allclose(first[0], other[0], rtol=1e-3, atol=1e-3)
    for actions in random_actions(0, 8, 3, 1):
        assert_same_step(mine.step(actions), theirs.step(actions))


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_rows_equal_single_environments_at_different_rounds(mode: AutoresetMode) -> None:
    """Rows 0 and 2 start again in mid-episode, so that rows end in different steps."""
    mine, theirs = pair(mode)
    mine.reset(seed=4)
    theirs.reset(seed=4)
    ended = []
    for step, actions in enumerate(random_actions(1, 9, 3, 1)):
        mask = {1: [True, False, False], 2: [False, False, True]}.get(step)
        if mask:
            options = [{"reset_mask": np.array(mask)} for _ in range(2)]
            first = mine.reset(seed=[20 + step] * 3, options=options[0])
            other = theirs.reset(seed=[20 + step] * 3, options=options[1])
            np.testing.assert_allclose(first[0], other[0], rtol=1e-3, atol=1e-3)
        results = mine.step(actions), theirs.step(actions)
        assert_same_step(*results)
        ended.append(results[0][2].tolist())
    assert [False, True, False] in ended  # the rows were indeed apart


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """One row's actions differ between two batches; the other rows see exactly the same."""
    batches = [DPilotVectorEnv(3, **SETTINGS) for _ in range(2)]
    for batch in batches:
        batch.reset(seed=7)
    for actions in random_actions(2, 5, 3, 1):
        changed = actions.copy()
        changed[1] = -changed[1]
        one, other = (batch.step(chosen) for batch, chosen in zip(batches, (actions, changed), strict=True))
        np.testing.assert_array_equal(one[0][[0, 2]], other[0][[0, 2]])
        np.testing.assert_array_equal(one[1][[0, 2]], other[1][[0, 2]])


def test_next_step_mode_ignores_the_action_of_the_reset() -> None:
    env = DPilotVectorEnv(2, **SETTINGS)
    env.reset(seed=0)
    for _ in range(3):
        *_, terminated, truncated, infos = env.step(np.zeros((2, 1), dtype=np.float32))
    assert terminated.all()
    assert not truncated.any()
    assert infos["round"].tolist() == [3, 3]
    observation, rewards, terminated, _, infos = env.step(np.full((2, 1), np.nan, dtype=np.float32))
    assert rewards.tolist() == [0.0, 0.0]
    assert not terminated.any()
    assert infos["round"].tolist() == [0, 0]
    assert observation[:, 0].tolist() == [-1.0, -1.0]


def test_seeds_make_episodes_repeat() -> None:
    env = DPilotVectorEnv(2, **SETTINGS)
    actions = random_actions(3, 7, 2, 1)

    def play() -> list[Any]:
        seen = [env.reset(seed=11)[0]]
        return seen + [env.step(chosen)[0] for chosen in actions]  # past the first automatic reset

    np.testing.assert_array_equal(play(), play())
    assert env.reset(seed=11)[1]["seed"].tolist() == [1_000_011, 1_000_012]
    assert env.reset(seed=[30, None])[1]["seed"].tolist()[0] == 1_000_030


def test_automatic_resets_draw_from_the_chosen_set() -> None:
    env = DPilotVectorEnv(2, autoreset_mode=SAME, instances="validation", instance_count=5, **(TINY | {"rounds": 1}))
    env.reset(seed=0)
    seen = set()
    for _ in range(12):
        seen |= set(env.step(np.zeros((2, 1), dtype=np.float32))[-1]["seed"].tolist())
    assert seen == set(range(2_000_000, 2_000_005))


def test_make_vec_builds_rows_of_one_core() -> None:
    env = gym.make_vec("DPilot/Clip-v0", num_envs=2, **SETTINGS)
    assert isinstance(env, DPilotVectorEnv)
    assert env.metadata["autoreset_mode"] is NEXT
    same = gym.make_vec("DPilot/Clip-v0", num_envs=2, autoreset_mode="SameStep", **SETTINGS)
    assert same.metadata["autoreset_mode"] is SAME
    assert env.metadata["autoreset_mode"] is NEXT
    assert env.observation_space.shape == (2, *env.single_observation_space.shape)  # type: ignore[misc]


def test_observations_are_fresh_arrays() -> None:
    env = DPilotVectorEnv(2, **SETTINGS)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(np.zeros((2, 1), dtype=np.float32))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_envs": 0}, "num_envs is 0"),
        ({"autoreset_mode": "never"}, "autoreset_mode is 'never'"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
    ],
)
def test_bad_arguments_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        DPilotVectorEnv(**settings, **SETTINGS)


def test_without_autoreset_the_caller_resets_by_a_mask() -> None:
    """As `SyncVectorEnv` does, but a step too many raises `ResetNeeded`."""
    mine, theirs = pair(AutoresetMode.DISABLED, 2)
    mask = {"reset_mask": np.array([False, True])}
    for env in (mine, theirs):
        env.reset(seed=3)
        env.step(np.zeros((2, 1), dtype=np.float32))
        env.reset(seed=[None, 9], options=dict(mask))
    for _ in range(2):
        assert_same_step(*(env.step(np.zeros((2, 1), dtype=np.float32)) for env in (mine, theirs)))
    with pytest.raises(gym.error.ResetNeeded, match=r"rows \[0\] are over"):
        mine.step(np.zeros((2, 1), dtype=np.float32))
    for env in (mine, theirs):
        env.reset(seed=[4, None], options={"reset_mask": np.array([True, False])})
    assert_same_step(*(env.step(np.zeros((2, 1), dtype=np.float32)) for env in (mine, theirs)))
    with pytest.raises(InputError, match="reset_mask"):
        mine.reset(options={"reset_mask": np.array([True, False, True])})


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_a_limit_of_steps_truncates_as_that_of_gymnasium(mode: AutoresetMode) -> None:
    mine = gym.make_vec("DPilot/Clip-v0", 2, max_episode_steps=2, autoreset_mode=mode, **SETTINGS)
    theirs = SyncVectorEnv([lambda: TimeLimit(make_env(**SETTINGS), 2) for _ in range(2)], autoreset_mode=mode)
    for env in (mine, theirs):
        env.reset(seed=1)
    truncated = []
    for actions in random_actions(6, 7, 2, 1):
        results = [env.step(actions) for env in (mine, theirs)]
        assert_same_step(*results)
        truncated.append(results[0][3].any())
    assert any(truncated)
    assert not all(truncated)
