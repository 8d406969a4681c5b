"""Reset options, what `info` holds, and pictures."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from envs import NOT_MEASURED, DPilotEnv, DPilotVectorEnv
from envs.picture import Picture
from fl_core.base.errors import InputError
from fl_core.run.evaluation import EVALUATED
from fl_core.run.plan import find_metric
from tests.envs.conftest import PLAIN, make_env, play, random_actions


@pytest.fixture(scope="module")
def env() -> DPilotEnv:
    return make_env(reward="paper")


def test_epsilon_option_sets_the_budget_of_the_episode(env: DPilotEnv) -> None:
    zeros = np.zeros((5, 1))
    tight, loose, plain = (play(env, zeros, **options)[-1][3] for options in ({"epsilon": 1.0}, {"epsilon": 20}, {}))
    assert tight["noise_multiplier"] > plain["noise_multiplier"] > loose["noise_multiplier"]
    for info, epsilon in ((tight, 1.0), (loose, 20.0), (plain, 7.5)):
        assert epsilon * 0.999 < info["epsilon_spent"] <= epsilon
    assert play(env, zeros, epsilon=math.inf)[-1][3]["epsilon_left"] == math.inf


def test_partition_option_spreads_the_samples_anew(env: DPilotEnv) -> None:
    zeros, held = np.zeros((5, 1)), []
    accuracies = []
    for options in ({}, {"partition": "iid"}):
        accuracies.append(play(env, zeros, **options)[-1][3]["personal_accuracy"])
        federation = env.core.federation
        lists, labels = federation.tables.train, federation.images.labels
        held.append([len(set(labels(lists.of(0, client)).tolist())) for client in range(federation.config.clients)])
    assert accuracies[0] != accuracies[1]
    assert max(held[0]) < min(held[1])


def test_learning_rate_option_scales_the_updates(env: DPilotEnv) -> None:
    slow, fast = (play(env, np.zeros((5, 1)), learning_rate=rate)[1][3] for rate in (0.01, 0.4))
    assert fast["update_norm"] > 10 * slow["update_norm"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilom": 1.0}, "reset option 'epsilom' is unknown; did you mean epsilon"),
        ({"seed": 1}, "reset option 'seed' is unknown"),
        ({"epsilon": 0.0}, "epsilon is 0.0, but it must be above 0"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": "4"}, "epsilon is"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"partition": "shard(3)"}, "did you mean shards"),
        ({"partition": "shards(3000)"}, "shards"),
        ({"partition": "classes(11)"}, "classes"),
    ],
)
def test_bad_options_are_refused_and_change_nothing(env: DPilotEnv, options: dict[str, Any], words: str) -> None:
    env.reset(seed=1)
    env.step(np.zeros(1, dtype=np.float32))
    before = env.core.federation.server.clone()
    with pytest.raises(InputError, match=words):
        env.reset(seed=2, options=options)
    assert env.core.federation.rounds.tolist() == [1]
    assert bool((env.core.federation.server == before).all())
    assert not env.step(np.zeros(1, dtype=np.float32))[2]


@pytest.mark.parametrize("signals", ["public", "accounted", "paper"])
@pytest.mark.parametrize("reward", ["final-accuracy", "paper"])
@pytest.mark.parametrize("epsilon", [7.5, math.inf])
def test_info_holds_plain_scalars_by_the_same_names(signals: str, reward: str, epsilon: float) -> None:
    """At reset, at every step and at the end; what an evaluation alone knows is measured when the reward needs it."""
    env = make_env(signals=signals, reward=reward, sampling_rate=0.02, rounds=4)
    names = list(env.reset(seed=3)[1])
    for done, (*_, info) in enumerate(play(env, random_actions(1, 4, 1), epsilon=epsilon)):
        assert info["round"] == done
        assert info["seed"] == 3
        assert list(info) == names
        evaluated = done == 4 or (done > 0 and (reward == "paper" or signals == "paper"))
        for name, value in info.items():
            assert type(value) in (int, float), name
            assert find_metric(name) if name not in ("round", "seed") else name
            known = name in ("round", "seed") or (evaluated if name in EVALUATED else done > 0)
            assert (value != NOT_MEASURED) == known, name
            assert math.isfinite(value) or not known or (name.startswith("epsilon_") and epsilon == math.inf), name


def test_evaluation_on_request_puts_accuracy_into_every_round() -> None:
    env = DPilotEnv(**PLAIN, evaluate_every_round=True, decision_rounds=2)
    play(env, np.zeros((3, 1)))
    assert len(env.core.history[0]) == 5
    assert all("global_accuracy" in figures for figures in env.core.history[0])


def test_history_starts_anew_with_the_episode(env: DPilotEnv) -> None:
    play(env, np.zeros((5, 1)))
    env.reset(options={"instance": 9})
    assert env.core.history == [[]]
    assert env.core.info(0) == {"round": 0, "seed": 9} | dict.fromkeys(env.core.figure_names, NOT_MEASURED)


def test_text_names_the_round_and_the_clip_norm() -> None:
    env = make_env(render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "round 0/5"
    env.step(np.array([1.0], dtype=np.float32))
    text = env.render()
    assert text.startswith("round 1/5")
    assert "clip_norm 8" in text
    assert "epsilon_spent" in text


def test_picture_has_pixels_and_changes() -> None:
    env = make_env(render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    env.step(np.zeros(1, dtype=np.float32))
    env.step(np.zeros(1, dtype=np.float32))
    second = env.render()
    for picture in (first, second):
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        assert picture.shape[2] == 3
    assert not np.array_equal(first, second)


def test_a_picture_does_not_depend_on_what_was_drawn_before() -> None:
    """Frames share axes and background, so a frame after others must equal a first one."""
    titles = ("a", "b", "c", "d")
    few = {title: [(1, 0.5), (2, 3.0)] for title in titles}
    many = {title: [(1, 1e4), (2, -7.0), (9, 0.0)] for title in titles}
    none: dict[str, list[tuple[int, float]]] = {title: [] for title in titles}
    used, fresh = Picture(9, titles, "epsilon for nobody"), [Picture(9, titles, "epsilon for nobody") for _ in range(2)]
    first = used.draw(few)
    used.draw(many)
    np.testing.assert_array_equal(used.draw(none), fresh[0].draw(none))
    np.testing.assert_array_equal(used.draw(few), first)
    np.testing.assert_array_equal(fresh[1].draw(few), first)
    assert first.shape == (400, 640, 3)


def test_no_render_mode_renders_nothing_and_vectors_render_each_row() -> None:
    env = make_env()
    env.reset(seed=0)
    assert env.render() is None
    rows = DPilotVectorEnv(2, render_mode="ansi", **PLAIN)
    rows.reset(seed=0)
    assert rows.render() == ("round 0/5", "round 0/5")


def test_saved_state_continues_bit_for_bit() -> None:
    settings = {"signals": "accounted", "reward": "accuracy-gain", "method": "fedper"}
    actions = random_actions(4, 5, 1)
    env = make_env(**settings)
    env.reset(seed=3)
    for action in actions[:2]:
        env.step(action)
    state = env.core.state_dict()
    json.dumps(state["plain"])
    rest = [env.step(action) for action in actions[2:]]
    resumed = make_env(**settings)
    resumed.core.load_state_dict(state)
    for action, expected in zip(actions[2:], rest, strict=True):
        got = resumed.step(action)
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1:] == expected[1:]
