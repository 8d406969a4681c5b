"""One script over every face: the same attributes, refusals, keys and, bit for bit, the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from envs import NOT_MEASURED, DPilotEnv, DPilotProcessVecEnv, DPilotVecEnv, DPilotVectorEnv, make_core
from fl_core import RunSettings
from fl_core.base.errors import InputError
from tests.envs.conftest import TINY, random_actions

SETTINGS: dict[str, Any] = TINY | {"rounds": 2, "clients": 6, "evaluation_samples": 50, "executor": "sequential"}
"""One client after the other: then the arithmetic does not depend on how many rows a batch has."""
ROWS = 2
SINGLE = partial(DPilotEnv, **SETTINGS)


class Driver:
    """What the script does with a face: rows of a single environment, of a vector or of a `VecEnv`."""

    def __init__(self, env: Any):
        self.env = env

    def reset(self, seed: Any) -> tuple[Any, list[dict[str, Any]]]:
        if isinstance(self.env, list):
            seeds = seed if isinstance(seed, list) else [seed, None if seed is None else seed + 1]
            found = [env.reset(seed=own) for env, own in zip(self.env, seeds, strict=True)]
            return np.stack([one for one, _ in found]), [info for _, info in found]
        if isinstance(self.env, VecEnv):
            if seed is not None:
                self.env.seed(seed)
            return self.env.reset(), [dict(info) for info in self.env.reset_infos]
        observations, infos = self.env.reset(seed=seed)
        return observations, _by_row(infos)

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Observations after an automatic reset, rewards, ends, and the infos of the step itself."""
        if isinstance(self.env, list):
            found = [env.step(own) for env, own in zip(self.env, actions, strict=True)]
            last = [info for *_, info in found]
            seen = [env.reset()[0] if one[2] else one[0] for env, one in zip(self.env, found, strict=True)]
            return np.stack(seen), np.array([one[1] for one in found]), np.array([one[2] for one in found]), last
        if isinstance(self.env, VecEnv):
            observations, rewards, ends, infos = self.env.step(actions)
            extra = ("TimeLimit.truncated", "terminal_observation")
            return observations, rewards, ends, [{k: v for k, v in one.items() if k not in extra} for one in infos]
        observations, rewards, ends, _, infos = self.env.step(actions)
        rows = _by_row(infos)
        for row in np.flatnonzero(infos.get("_final_info", [])):
            rows[row] = _by_row(infos["final_info"])[row]
        return observations, rewards, ends, rows

    def every(self, name: str, *arguments: Any) -> list[Any]:
        """An attribute of each row or, with arguments, the result of a method."""
        if isinstance(self.env, list):
            found = [getattr(env, name) for env in self.env]
            return [one(*arguments) for one in found] if arguments else found
        if isinstance(self.env, VecEnv):
            return self.env.env_method(name, *arguments) if arguments else self.env.get_attr(name)
        return list(self.env.call(name, *arguments))


def _by_row(infos: dict[str, Any]) -> list[dict[str, Any]]:
    names = [name for name in infos if not name.startswith(("_", "final_"))]
    return [{name: infos[name][row].item() for name in names if infos[f"_{name}"][row]} for row in range(ROWS)]


SAME = AutoresetMode.SAME_STEP
FACES: dict[str, Callable[[], Any]] = {
    "single": lambda: [SINGLE() for _ in range(ROWS)],
    "gym.make": lambda: [gym.make("DPilot/Clip-v0", **SETTINGS).unwrapped for _ in range(ROWS)],
    "vector": lambda: DPilotVectorEnv(ROWS, autoreset_mode=SAME, **SETTINGS),
    "gym.make_vec": lambda: gym.make_vec("DPilot/Clip-v0", ROWS, autoreset_mode="SameStep", **SETTINGS),
    "sync": lambda: SyncVectorEnv([SINGLE] * ROWS, autoreset_mode=SAME),
    "async": lambda: AsyncVectorEnv([SINGLE] * ROWS, autoreset_mode=SAME),
    "VecEnv": lambda: DPilotVecEnv(ROWS, **SETTINGS),
    "processes": lambda: DPilotProcessVecEnv(ROWS, processes=2, **SETTINGS),
    "dummy": lambda: DummyVecEnv([SINGLE] * ROWS),
    "subproc": lambda: SubprocVecEnv([SINGLE] * ROWS, start_method="fork"),
}


@pytest.fixture(scope="module", params=FACES)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    env = FACES[request.param]()
    yield Driver(env)
    for one in env if isinstance(env, list) else [env]:
        one.close()


def script(driver: Driver) -> list[Any]:
    """Two episodes and a half of two rows, the second and third drawn."""
    observations, infos = driver.reset(5)
    seen: list[Any] = [np.asarray(observations).tolist(), infos]
    for actions in random_actions(7, 5, ROWS, 1):
        observations, rewards, ends, infos = driver.step(actions)
        seen += [observations.tolist(), np.float32(rewards).tolist(), np.asarray(ends).tolist(), infos]
    return seen


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return script(Driver(FACES["single"]()))


def test_a_step_before_a_reset_asks_for_it(driver: Driver) -> None:
    """First of the module's tests, so that the faces are fresh."""
    if isinstance(driver.env, AsyncVectorEnv | SubprocVecEnv):
        pytest.skip("an error in a worker ends these two for good, whatever the environment")
    with pytest.raises(gym.error.ResetNeeded):
        driver.step(np.zeros((ROWS, 1), dtype=np.float32))


def test_values_and_keys_are_the_same_bit_for_bit(driver: Driver, expected: list[Any]) -> None:
    assert script(driver) == expected


def test_infos_have_the_same_names_at_all_times(driver: Driver) -> None:
    names = set(driver.every("core")[0].figure_names) | {"round", "seed"}
    infos = [*driver.reset(5)[1]]
    for actions in random_actions(7, 3, ROWS, 1):
        infos += driver.step(actions)[3]
    assert all(set(info) == names for info in infos)
    assert [info["global_accuracy"] for info in infos[:4]] == [NOT_MEASURED] * 4  # two resets, two first steps
    assert all(0 < info["global_accuracy"] < 1 for info in infos[4:6])


def test_the_same_seed_repeats_whatever_was_played(driver: Driver, expected: list[Any]) -> None:
    assert script(driver) == expected


def test_rows_offer_the_same_attributes(driver: Driver) -> None:
    single = SINGLE()
    for name in ("knobs", "signals", "features"):
        for found in driver.every(name):
            assert [one.name for one in found] == [one.name for one in getattr(single, name)], name
    for name in ("observation_space", "action_space", "render_mode", "instance"):
        assert driver.every(name) == [getattr(single, name)] * ROWS, name
    assert [core.spec for core in driver.every("core")] == [single.core.spec] * ROWS
    assert len(set(map(tuple, driver.every("references", [1_000_000])))) == 1


def test_instances_can_be_fixed(driver: Driver) -> None:
    driver.every("set_instances", [41])
    try:
        assert [info["seed"] for info in driver.reset(None)[1]] == [41] * ROWS
    finally:
        set_none = driver.env if isinstance(driver.env, list) else None
        for env in set_none or ():
            env.instance = None
        if set_none is None:
            driver.env.set_attr("instance", None)
    assert all(1_000_000 <= info["seed"] < 1_000_256 for info in driver.reset(None)[1])


@pytest.mark.parametrize("shape", [(ROWS + 1, 1), (ROWS, 2), (ROWS,)])
def test_actions_of_another_shape_are_refused(driver: Driver, shape: tuple[int, ...]) -> None:
    if not isinstance(driver.env, DPilotVectorEnv | DPilotVecEnv | DPilotProcessVecEnv):
        pytest.skip("the library's own vector hands each environment its row, whatever is left over")
    driver.reset(1)
    with pytest.raises(InputError, match="actions have shape"):
        driver.step(np.zeros(shape, dtype=np.float32))
    assert [info["round"] for info in driver.step(np.zeros((ROWS, 1), dtype=np.float32))[3]] == [1] * ROWS


@pytest.mark.parametrize("seed", [1.0, True, -1, "3"])
def test_wrong_seeds_are_refused(seed: Any) -> None:
    for env in (SINGLE(), DPilotVectorEnv(ROWS, **SETTINGS)):
        with pytest.raises(InputError, match="seed is"):
            env.reset(seed=seed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [np.int64(3), 2**63, 2**80])
def test_any_whole_number_is_a_seed(seed: Any) -> None:
    [single, vector] = SINGLE(), DPilotVectorEnv(ROWS, **SETTINGS)
    assert vector.reset(seed=seed)[1]["seed"][0] == single.reset(seed=seed)[1]["seed"]


@pytest.mark.parametrize("rows", [[-1], [0, 0], [2], [True], [0.5]])
def test_rows_that_are_not_there_are_refused(rows: list[Any]) -> None:
    core = make_core(ROWS, **SETTINGS)
    core.reset([0, 1], [RunSettings(seed=1), RunSettings(seed=2)])
    for call in (
        lambda: core.reset(rows, [RunSettings(seed=3)] * len(rows)),
        lambda: core.step(np.zeros((ROWS, 1)), rows),
    ):
        with pytest.raises(InputError, match="rows"):
            call()
    with pytest.raises(InputError, match="2 settings for 1 rows"):
        core.reset([0], [RunSettings(seed=3)] * 2)
    assert core.rounds.tolist() == [0, 0]
