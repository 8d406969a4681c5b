"""Gymnasium's wrappers around an environment: each steps an episode, and does what its documentation says to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as vectors
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from envs import DPilotEnv

SETTINGS: dict[str, Any] = {
    "clients": 6,
    "rounds": 4,
    "local_steps": 1,
    "evaluation_samples": 50,
    "executor": "sequential",
    "reward": "final-accuracy",
}
ACTIONS = np.array([[-0.8], [0.4], [1.0], [0.1]], dtype=np.float32)
SEED, LENGTH, FEATURES, BOUND = 3, len(ACTIONS), 6, 2.0
f32 = np.float32
twice_and_one = partial(wrappers.TransformReward, func=lambda reward: 2 * reward + 1)


@dataclass
class Episode:
    """What a caller saw of an episode."""

    seen: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    ends: list[tuple[Any, Any]] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)

    @property
    def observations(self) -> NDArray[Any]:
        return np.stack([np.asarray(one) for one in self.seen])


def played(env: Any, actions: Sequence[Any], known: dict[bytes, Episode], seed: Any = SEED) -> Episode:
    """An episode of the bare environment, played once for the same actions."""
    key = np.asarray(actions).tobytes()
    if key not in known:
        known[key] = play(env, actions, seed)
    return known[key]


def play(env: Any, actions: Sequence[Any], seed: Any = SEED) -> Episode:
    observation, info = env.reset(seed=seed)
    found = Episode([observation], [], [], [info])
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        found.seen.append(observation)
        found.rewards.append(reward)
        found.ends.append((terminated, truncated))
        found.infos.append(info)
        if np.all(terminated | truncated):
            break
    return found


Check = Callable[[Episode, Episode], None]
Wrap = Callable[[Any], Any]


def shows(expected: Callable[[NDArray[Any]], Any]) -> Check:
    """Compare what is seen with a function of what the bare environment shows; nothing else changes."""

    def check(bare: Episode, own: Episode) -> None:
        assert_allclose(own.observations, expected(bare.observations), rtol=1e-6, atol=1e-6)
        assert_array_equal(own.rewards, bare.rewards)
        assert_array_equal(own.ends, bare.ends)

    return check


def pays(expected: Callable[[NDArray[Any]], Any], slack: float = 1e-6) -> Check:
    """Compare rewards with a function of the bare environment's; nothing else changes."""

    def check(bare: Episode, own: Episode) -> None:
        assert_allclose(np.array(own.rewards, float), expected(np.array(bare.rewards, float)), rtol=slack)
        assert_array_equal(own.observations, bare.observations)

    return check


same = shows(lambda seen: seen)


def repeats(bare: Episode, own: Episode) -> None:
    """A step of the wrapper is two of the environment: their rewards' sum and the later observation."""
    assert_array_equal(own.observations, bare.observations[::2])
    assert_allclose(own.rewards, [sum(bare.rewards[:2]), sum(bare.rewards[2:])])


def skips(bare: Episode, own: Episode) -> None:
    seen = bare.observations
    assert_array_equal(own.observations, [seen[0], np.maximum(seen[1], seen[2]), np.maximum(seen[3], seen[4])])


def counts(bare: Episode, own: Episode) -> None:
    same(bare, own)
    assert own.infos[-1]["episode"]["r"] == pytest.approx(sum(bare.rewards))
    assert own.infos[-1]["episode"]["l"] == LENGTH


def cut(bare: Episode, own: Episode) -> None:
    assert own.ends == [(False, False), (False, True)]
    assert_array_equal(own.observations, bare.observations[:3])


def normalized(bare: Episode, own: Episode) -> None:
    """Each observation is scaled by the moments of those up to it."""
    for step in range(1, LENGTH + 1):
        before = bare.observations[: step + 1].astype(float)
        scaled = (before[-1] - before.mean(0)) / np.sqrt(before.var(0) + 1e-2)
        assert_allclose(own.observations[step], scaled, atol=0.02)


def by_return(rewards: NDArray[Any]) -> Any:
    """The reward of the end by the standard deviation of the discounted returns, which are 0 before it.

    The wrapper counts a variance of 1 as a ten-thousandth of a return, which is 1 % here.
    """
    return rewards / np.sqrt(np.var(rewards, axis=0) + 1e-8)


def timed(seen: NDArray[Any]) -> Any:
    return np.concatenate([seen, np.arange(LENGTH + 1)[:, None]], axis=1)


def stacked(seen: NDArray[Any]) -> Any:
    return np.stack([np.concatenate([seen[:1], seen[:-1]]), seen], axis=1)


def bins(seen: NDArray[Any]) -> Any:
    return np.clip(np.floor((seen + BOUND) / (2 * BOUND) * 4), 0, 3)


@dataclass(frozen=True)
class Case:
    """A wrapper, what is played in it and below it, and its effect."""

    wrap: Wrap
    check: Check = same
    actions: Sequence[Any] = tuple(ACTIONS)
    bare_actions: Sequence[Any] = tuple(ACTIONS)


PAIRS = tuple(np.repeat(ACTIONS[:2], 2, axis=0))
CENTRES = tuple(np.array([[-0.8], [0.0], [0.8], [0.4]], dtype=np.float32))
BEYOND = tuple(4 * ACTIONS)
double = spaces.Box(-2 * BOUND, 2 * BOUND, (FEATURES,), f32)
SINGLE: dict[str, Case] = {
    "DelayObservation": Case(
        lambda e: wrappers.DelayObservation(e, 1), shows(lambda seen: np.concatenate([0 * seen[:1], seen[:-1]]))
    ),
    "DtypeObservation": Case(
        lambda e: wrappers.DtypeObservation(e, np.float64), shows(lambda seen: seen.astype(np.float64))
    ),
    "DiscretizeObservation": Case(lambda e: wrappers.DiscretizeObservation(e, 4, True), shows(bins)),
    "FlattenObservation": Case(wrappers.FlattenObservation),
    "FrameStackObservation": Case(lambda e: wrappers.FrameStackObservation(e, 2), shows(stacked)),
    "TransformObservation": Case(
        lambda e: wrappers.TransformObservation(e, lambda seen: 2 * seen, double), shows(lambda seen: 2 * seen)
    ),
    "MaxAndSkipObservation": Case(lambda e: wrappers.MaxAndSkipObservation(e, 2), skips, ACTIONS[:2], PAIRS),
    "NormalizeObservation": Case(lambda e: wrappers.NormalizeObservation(e, 1e-2), normalized),
    "ReshapeObservation": Case(
        lambda e: wrappers.ReshapeObservation(e, (2, 3)), shows(lambda seen: seen.reshape(-1, 2, 3))
    ),
    "RescaleObservation": Case(
        lambda e: wrappers.RescaleObservation(e, f32(0), f32(1)), shows(lambda seen: (seen + BOUND) / (2 * BOUND))
    ),
    "TimeAwareObservation": Case(lambda e: wrappers.TimeAwareObservation(wrappers.TimeLimit(e, 9)), shows(timed)),
    "ClipAction": Case(wrappers.ClipAction, same, BEYOND, tuple(np.clip(BEYOND, -1, 1))),
    "DiscretizeAction": Case(lambda e: wrappers.DiscretizeAction(e, 5), same, (0, 2, 4, 3), CENTRES),
    "TransformAction": Case(lambda e: wrappers.TransformAction(e, lambda a: -a, e.action_space), same, tuple(-ACTIONS)),
    "RescaleAction": Case(lambda e: wrappers.RescaleAction(e, f32(0), f32(1)), same, tuple((ACTIONS + 1) / 2)),
    "StickyAction": Case(lambda e: wrappers.StickyAction(e, 1 - 1e-12), same, ACTIONS, (ACTIONS[0],) * LENGTH),
    "RepeatAction": Case(lambda e: wrappers.RepeatAction(e, 2), repeats, ACTIONS[:2], PAIRS),
    "ClipReward": Case(lambda e: wrappers.ClipReward(e, 0, 0.05), pays(lambda paid: np.clip(paid, 0, 0.05))),
    "TransformReward": Case(
        lambda e: wrappers.TransformReward(e, lambda r: 2 * r + 1), pays(lambda paid: 2 * paid + 1)
    ),
    "NormalizeReward": Case(wrappers.NormalizeReward, pays(by_return, 0.02)),
    "TimeLimit": Case(lambda e: wrappers.TimeLimit(e, 2), cut),
    "PassiveEnvChecker": Case(wrappers.PassiveEnvChecker),
    "OrderEnforcing": Case(wrappers.OrderEnforcing),
    "RecordEpisodeStatistics": Case(wrappers.RecordEpisodeStatistics, counts),
}


@pytest.fixture(scope="module", params=["DPilotEnv", "gym.make"])
def single(request: pytest.FixtureRequest) -> Any:
    if request.param == "DPilotEnv":
        return DPilotEnv(**SETTINGS), {}
    return gym.make("DPilot/Clip-v0", **SETTINGS), {}


@pytest.mark.filterwarnings("error:.*(obs|action|reward|info|render)")  # those of the passive checker
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of the wrapper's own bounds
@pytest.mark.parametrize("name", SINGLE)
def test_a_single_environment_under_a_wrapper(single: Any, name: str) -> None:
    case = SINGLE[name]
    bare, known = single
    env = case.wrap(bare)
    own = play(env, case.actions)
    case.check(played(bare, case.bare_actions, known), own)
    assert all(env.observation_space.contains(one) for one in own.seen)


def test_autoreset_begins_the_next_episode_by_a_step(single: Any) -> None:
    bare = play(single[0], ACTIONS)
    env = wrappers.Autoreset(single[0])
    assert_array_equal(play(env, ACTIONS).observations, bare.observations)
    observation, reward, terminated, truncated, info = env.step(ACTIONS[0])
    assert (reward, terminated, truncated, info["round"]) == (0.0, False, False, 0)
    assert observation[0] == -1.0  # the share of rounds done


def test_order_enforcing_is_not_needed_for_the_sentence() -> None:
    for env in (wrappers.OrderEnforcing(DPilotEnv(**SETTINGS)), DPilotEnv(**SETTINGS)):
        with pytest.raises(gym.error.ResetNeeded):
            env.step(ACTIONS[0])


PICTURES: dict[str, Wrap] = {
    "AddRenderObservation": wrappers.AddRenderObservation,
    "GrayscaleObservation": lambda e: wrappers.GrayscaleObservation(wrappers.AddRenderObservation(e)),
    "AddWhiteNoise": lambda e: wrappers.AddWhiteNoise(e, 0.5),
    "ObstructView": lambda e: wrappers.ObstructView(e, 0.1, 2),
    "RenderCollection": wrappers.RenderCollection,
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_under_a_wrapper(name: str) -> None:
    bare = DPilotEnv(render_mode="rgb_array", **SETTINGS)
    env = PICTURES[name](bare)
    own = play(env, ACTIONS[:2])
    picture = bare.render()
    if name == "AddRenderObservation":
        assert_array_equal(own.seen[-1], picture)
    elif name == "GrayscaleObservation":
        assert_allclose(own.seen[-1], picture @ [0.2125, 0.7154, 0.0721], atol=1)
    elif name == "RenderCollection":
        frames = env.render()
        assert len(frames) == 3  # of the reset, and of each step
        assert_array_equal(frames[-1], picture)
    else:
        changed = (env.render() != picture).any(axis=-1).mean()
        assert 0.01 < changed < 0.6


# ---------------------------------------------------------------- vectors

ROWS = 2
ROW_ACTIONS = np.stack([ACTIONS, -ACTIONS], axis=1)
SEEDS = [SEED, SEED + 1]
rows_of_doubles = spaces.Box(-2 * BOUND, 2 * BOUND, (ROWS, FEATURES), f32)


def counts_rows(bare: Episode, own: Episode) -> None:
    same(bare, own)
    assert_allclose(own.infos[-1]["episode"]["r"], np.sum(bare.rewards, axis=0))
    assert_array_equal(own.infos[-1]["episode"]["l"], [LENGTH] * ROWS)


def lists(bare: Episode, own: Episode) -> None:
    same(bare, own)
    for listed, packed in zip(own.infos, bare.infos, strict=True):
        assert isinstance(listed, list)
        assert [one["seed"] for one in listed] == packed["seed"].tolist()
        assert [one["round"] for one in listed] == packed["round"].tolist()


def normalized_rows(bare: Episode, own: Episode) -> None:
    """The moments are those of all rows together."""
    for step in range(1, LENGTH + 1):
        before = bare.observations[: step + 1].reshape(-1, FEATURES).astype(float)
        scaled = (bare.observations[step] - before.mean(0)) / np.sqrt(before.var(0) + 1e-2)
        assert_allclose(own.observations[step], scaled, atol=0.02)


def by_return_of_all(rewards: NDArray[Any]) -> Any:
    return rewards / np.sqrt(np.var(rewards) + 1e-8)


VECTOR: dict[str, Case] = {
    "TransformObservation": Case(
        lambda e: vectors.TransformObservation(e, lambda seen: 2 * seen, None, double), shows(lambda seen: 2 * seen)
    ),
    "VectorizeTransformObservation": Case(
        lambda e: vectors.VectorizeTransformObservation(e, wrappers.ReshapeObservation, shape=(2, 3)),
        shows(lambda seen: seen.reshape(-1, ROWS, 2, 3)),
    ),
    "FlattenObservation": Case(vectors.FlattenObservation),
    "ReshapeObservation": Case(
        lambda e: vectors.ReshapeObservation(e, (2, 3)), shows(lambda seen: seen.reshape(-1, ROWS, 2, 3))
    ),
    "RescaleObservation": Case(
        lambda e: vectors.RescaleObservation(e, f32(0), f32(1)), shows(lambda seen: (seen + BOUND) / (2 * BOUND))
    ),
    "DtypeObservation": Case(
        lambda e: vectors.DtypeObservation(e, np.float64), shows(lambda seen: seen.astype(np.float64))
    ),
    "NormalizeObservation": Case(lambda e: vectors.NormalizeObservation(e, 1e-2), normalized_rows),
    "TransformAction": Case(lambda e: vectors.TransformAction(e, lambda a: -a), same, tuple(-ROW_ACTIONS)),
    "VectorizeTransformAction": Case(
        lambda e: vectors.VectorizeTransformAction(e, wrappers.RescaleAction, min_action=f32(0), max_action=f32(1)),
        same,
        tuple((ROW_ACTIONS + 1) / 2),
    ),
    "ClipAction": Case(vectors.ClipAction, same, tuple(4 * ROW_ACTIONS), tuple(np.clip(4 * ROW_ACTIONS, -1, 1))),
    "RescaleAction": Case(lambda e: vectors.RescaleAction(e, f32(0), f32(1)), same, tuple((ROW_ACTIONS + 1) / 2)),
    "TransformReward": Case(lambda e: vectors.TransformReward(e, lambda r: 2 * r + 1), pays(lambda paid: 2 * paid + 1)),
    "VectorizeTransformReward": Case(
        lambda e: vectors.VectorizeTransformReward(e, wrappers.ClipReward, min_reward=0, max_reward=0.05),
        pays(lambda paid: np.clip(paid, 0, 0.05)),
    ),
    "ClipReward": Case(lambda e: vectors.ClipReward(e, 0, 0.05), pays(lambda paid: np.clip(paid, 0, 0.05))),
    "NormalizeReward": Case(vectors.NormalizeReward, pays(by_return_of_all, 0.02)),
    "RecordEpisodeStatistics": Case(vectors.RecordEpisodeStatistics, counts_rows),
    "DictInfoToList": Case(vectors.DictInfoToList, lists),
}
FACES: dict[str, Callable[[], Any]] = {  # the others equal these bit for bit
    "gym.make_vec": lambda: gym.make_vec("DPilot/Clip-v0", ROWS, **SETTINGS),
    "SyncVectorEnv": lambda: SyncVectorEnv([lambda: DPilotEnv(**SETTINGS)] * ROWS),
}


@pytest.fixture(scope="module", params=FACES)
def vector(request: pytest.FixtureRequest) -> Iterator[Any]:
    env = FACES[request.param]()
    yield env, {}
    env.close()


@pytest.mark.parametrize("name", VECTOR)
def test_a_vector_under_a_wrapper(vector: Any, name: str) -> None:
    case = VECTOR[name]
    above, below = (one if np.ndim(one) == 3 else ROW_ACTIONS for one in (case.actions, case.bare_actions))
    env, known = vector
    case.check(played(env, below, known, SEEDS), play(case.wrap(env), above, SEEDS))
