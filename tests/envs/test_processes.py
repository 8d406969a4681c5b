"""Rows spread over processes: the same runs as in one batch, with errors and ends that reach the main process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import VecMonitor

from envs import DPilotVecEnv
from envs.processes import DPilotProcessVecEnv, row_blocks
from fl_core.base.errors import InputError
from tests.envs.conftest import TINY, random_actions

SETTINGS: dict[str, Any] = TINY | {"rounds": 2, "clients": 8}


@pytest.fixture(scope="module")
def spread() -> Iterator[DPilotProcessVecEnv]:
    env = DPilotProcessVecEnv(3, processes=2, **SETTINGS)
    yield env
    env.close()


def test_rows_in_processes_equal_rows_of_one_batch(spread: DPilotProcessVecEnv) -> None:
    batch = DPilotVecEnv(3, **SETTINGS)
    for env in (batch, spread):
        env.set_instances([11, 12, 11])
    np.testing.assert_allclose(spread.reset(), batch.reset(), atol=1e-6)
    assert spread.reset_infos == batch.reset_infos
    for actions in random_actions(5, 5, 3, 1):  # two episodes and a half
        for one, other in zip(spread.step(actions)[:3], batch.step(actions)[:3], strict=True):
            np.testing.assert_allclose(one, other, atol=0.11)  # a flipped test sample moves a reward by up to 0.1
        assert [info["seed"] for info in spread.reset_infos] == [11, 12, 11]
    assert spread.references([11, 12, 13]) == pytest.approx(batch.references([11, 12, 13]), abs=0.011)
    assert spread.observation_space == batch.observation_space
    assert spread.action_space == batch.action_space


def test_ends_are_told_with_the_last_observation(spread: DPilotProcessVecEnv) -> None:
    monitored = VecMonitor(spread)
    monitored.reset()
    for _ in range(2):
        *_, ended, infos = monitored.step(np.zeros((3, 1), dtype=np.float32))
    assert ended.all()
    assert all(info["terminal_observation"].shape == spread.observation_space.shape for info in infos)
    assert all(info["episode"]["l"] == 2 for info in infos)


def test_attributes_methods_and_pictures_reach_the_rows(spread: DPilotProcessVecEnv) -> None:
    spread.reset()
    assert [knobs[0].name for knobs in spread.get_attr("knobs")] == ["clip_norm"] * 3
    assert spread.get_attr("render_mode", indices=1) == [None]
    spread.set_attr("mark", "here")
    assert spread.get_attr("mark") == ["here"] * 3
    assert spread.env_is_wrapped(VecMonitor) == [False] * 3  # type: ignore[arg-type]
    assert len(spread.get_images()) == 3


def test_what_a_process_refuses_is_raised_here_and_it_lives_on(spread: DPilotProcessVecEnv) -> None:
    spread.set_options({"epsilon": -1.0})
    with pytest.raises(InputError, match="epsilon is -1"):
        spread.reset()
    spread.set_options({})
    spread.reset()


def test_a_reset_that_one_process_refuses_resets_none(spread: DPilotProcessVecEnv) -> None:
    spread.seed(3)
    spread.reset()
    spread.step(np.zeros((3, 1), np.float32))
    rounds = [core.federation.rounds.tolist() for core in spread.get_attr("core")]
    spread.set_options([{}, {}, {"epsilon": -1.0}])
    with pytest.raises(InputError, match="epsilon is -1"):
        spread.reset()
    assert [core.federation.rounds.tolist() for core in spread.get_attr("core")] == rounds
    spread.set_options({})
    spread.reset()


class Awkward(Exception):
    """An error that pickle cannot rebuild."""

    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")


class Trap:
    """Raises wherever it is read from its pickle."""

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> None:
    raise Awkward(1, 2)


def test_what_cannot_go_to_a_process_and_back_leaves_the_others_in_step(spread: DPilotProcessVecEnv) -> None:
    spread.set_instances([21, 22, 23])
    for call in (
        lambda: spread.env_method("set_instances", lambda: 3),
        lambda: spread.set_attr("mark", (one for one in "ab")),
    ):
        with pytest.raises(InputError, match="What was handed in cannot go to another process"):
            call()
    spread.set_options([{}, {}, {"epsilon": lambda: 3}])  # type: ignore[list-item]  # the last block's alone
    with pytest.raises(InputError, match="cannot go to another process"):
        spread.reset()
    spread.set_options({})
    with pytest.raises(RuntimeError, match="Awkward: 1 and 2"):
        spread.set_attr("mark", Trap())
    spread.reset()
    assert [info["seed"] for info in spread.reset_infos] == [21, 22, 23]


def test_answers_that_an_interruption_left_are_not_taken_for_later_ones(spread: DPilotProcessVecEnv) -> None:
    spread.set_instances([21, 22, 23])
    spread.reset()
    spread.step_async(np.zeros((3, 1), dtype=np.float32))  # Ctrl-C here
    spread.set_instances([31, 32, 33])
    spread.reset()
    assert [info["seed"] for info in spread.reset_infos] == [31, 32, 33]


def test_a_refused_action_leaves_all_rows_where_they_were(spread: DPilotProcessVecEnv) -> None:
    spread.reset()
    actions = np.zeros((3, 1), dtype=np.float32)
    actions[2] = np.nan
    with pytest.raises(InputError, match="knob 'clip_norm' of run 2 is nan"):
        spread.step(actions)
    assert [info["round"] for info in spread.step(np.zeros((3, 1), dtype=np.float32))[3]] == [1, 1, 1]


def test_closed_environments_say_so() -> None:
    env = DPilotProcessVecEnv(1, processes=1, **SETTINGS)
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError, match="closed"):
        env.reset()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"task": "digitss"}, "did you mean digits"),
        ({"processes": 4}, "processes is 4, but it must be .* at most 3"),
        ({"processes": 0}, "processes is 0"),
    ],
)
def test_bad_settings_are_refused_and_leave_no_process(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        DPilotProcessVecEnv(3, **({"processes": 2} | SETTINGS | asked))


def test_a_process_that_died_is_named_and_closing_still_works() -> None:
    env = DPilotProcessVecEnv(2, processes=2, **SETTINGS)
    process = env._workers[1][0]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(RuntimeError, match="Process 1 of the environments has died"):
        env.reset()
    env.close()
    env.close()


@given(rows=st.integers(1, 40), data=st.data())
def test_blocks_cover_the_rows_in_order_and_evenly(rows: int, data: st.DataObject) -> None:
    processes = data.draw(st.integers(1, rows))
    blocks = row_blocks(rows, processes)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(rows))
    sizes = [block.stop - block.start for block in blocks]
    assert len(sizes) == processes
    assert max(sizes) - min(sizes) <= 1
