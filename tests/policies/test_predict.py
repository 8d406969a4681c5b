"""The protocol of stable-baselines3, held by all controllers: single observations, batches and whole episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from envs import DPilotVecEnv, make_core, run_to_the_end
from fl_core import RunSettings
from fl_core.base.errors import InputError
from policies import CONTROLLERS, ControllerSpec, RandomControl, View, make_controller
from tests.policies.conftest import env_settings, make_view, observe

SMALL: dict[str, Any] = {
    "task": "digits",
    "rounds": 4,
    "local_steps": 1,
    "reward": "final-accuracy",
    "executor": "vectorized",
}


def made(name: str, **settings: Any) -> tuple[View, Any]:
    spec = ControllerSpec(name)
    view = make_view(knobs=spec.knobs, signals=spec.signals, **settings)
    return view, make_controller(spec, view, anchor=0.8)


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_actions_fit_the_action_space(name: str) -> None:
    view, controller = made(name)
    random = np.random.default_rng(0)
    observations = random.uniform(-2, 2, (50, len(view.features))).astype(np.float32)
    actions, _ = controller.predict(observations)
    assert actions.shape == (50, len(view.knobs))
    assert actions.dtype == np.float32
    assert np.isfinite(actions).all()
    assert np.abs(actions).max(initial=0) <= 1
    single, _ = controller.predict(observations[0])
    assert single.shape == (len(view.knobs),)


@pytest.mark.parametrize("name", sorted(set(CONTROLLERS) - {"random", "tail-average"}))
def test_batch_equals_single(name: str) -> None:
    view, controller = made(name, decision_rounds=4)
    observations = np.concatenate([observe(view, np.arange(40), clip, share) for clip, share in [(0.4, 0.1), (3, 0.9)]])
    batch, _ = controller.predict(observations)
    single = np.stack([controller.predict(one)[0] for one in observations])
    np.testing.assert_array_equal(batch, single)


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_pure_function_of_its_arguments(name: str) -> None:
    view, controller = made(name)
    first = observe(view, 3)
    before = first.copy()
    again = [controller.predict(first)[0] for _ in range(3)]
    controller.predict(observe(view, 9))
    np.testing.assert_array_equal(again, [controller.predict(first)[0]] * 3)
    np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 6), ()])
def test_observation_of_another_environment_is_refused(public: View, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="was made for 6 features"):
        make_controller("fixed", public).predict(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_evaluate_policy_runs(name: str) -> None:
    spec = ControllerSpec(name)
    env = Monitor(gym.make("DPilot/Clip-v0", **env_settings(spec), **SMALL))
    controller = make_controller(spec, env, anchor=0.8)
    env.reset(seed=1)
    mean, _ = evaluate_policy(controller, env, n_eval_episodes=1)  # type: ignore[arg-type]
    assert 0 <= float(np.mean(mean)) <= 1


def test_evaluate_policy_runs_on_rows_of_one_core() -> None:
    env = VecMonitor(DPilotVecEnv(2, signals="accounted", **SMALL))
    controller = make_controller("aqc", env)
    rewards, lengths = evaluate_policy(controller, env, n_eval_episodes=3, return_episode_rewards=True)  # type: ignore[arg-type]
    assert lengths == [4, 4, 4]
    assert np.isfinite(rewards).all()


def test_for_env_takes_every_face() -> None:
    settings = SMALL | {"decision_rounds": 2}
    faces = [
        gym.make("DPilot/Clip-v0", **settings),
        Monitor(gym.make("DPilot/Clip-v0", **settings)),
        gym.make_vec("DPilot/Clip-v0", num_envs=2, **settings),
        DPilotVecEnv(2, **settings),
        VecMonitor(DPilotVecEnv(2, **settings)),
        DummyVecEnv([lambda: Monitor(gym.make("DPilot/Clip-v0", **settings))]),
        make_core(2, **settings),
    ]
    for face in faces:
        view = View.of(face)
        assert (view.rounds, view.decision_rounds) == (4, 2)
        assert [knob.name for knob in view.knobs] == ["clip_norm"]
        assert view.features[0].name == "round_fraction"
    with pytest.raises(InputError, match="no DPilot environment"):
        View.of(gym.make("CartPole-v1"))


def episode(controller: RandomControl, view: View, state: Any = None, rows: int = 2) -> tuple[Any, Any]:
    actions = []
    for t in range(view.rounds):
        observations = np.repeat(observe(view, t)[None], rows, axis=0)
        action, state = controller.predict(observations, state, np.full(rows, t == 0))
        actions.append(action)
    return np.stack(actions), state


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 3}, "is made for rounds 4, but the environment has 3"),
        ({"decision_rounds": 2}, "is made for decision_rounds 1, but the environment has 2"),
        ({"signals": "paper"}, "is made for the signals"),
        ({"knobs": "server_learning_rate"}, "is made for the knobs clip_norm from"),
    ],
)
def test_whoever_plays_it_is_told_what_it_was_not_made_for(changes: dict[str, Any], words: str) -> None:
    controller = make_controller(ControllerSpec("random"), View.of(make_core(1, **SMALL)), anchor=None)
    core = make_core(1, **{**SMALL, **changes})
    with pytest.raises(InputError, match=words):
        run_to_the_end(core, controller, [RunSettings(seed=3)], lambda _: None)
    controller.check(make_core(1, **{**SMALL, "epsilon": 3.0}))  # another budget is another problem, not another view


def test_memory_of_other_observations_is_refused() -> None:
    view, controller = made("random")
    _, state = controller.predict(np.zeros((2, len(view.features))))
    with pytest.raises(InputError, match="state is"):
        controller.predict(np.zeros((3, len(view.features))), state)
    with pytest.raises(InputError, match="episode_start has shape"):
        controller.predict(np.zeros((2, len(view.features))), state, np.ones(3, dtype=bool))


def test_an_environment_below_wrappers_that_scale_is_refused() -> None:
    with pytest.raises(InputError, match="VecNormalize scales its observations"):
        View.of(VecNormalize(DPilotVecEnv(1, **SMALL)))


def test_random_repeats_itself_from_the_same_seed() -> None:
    view = make_view(knobs="clip_norm,server_learning_rate")
    first, state = episode(RandomControl.for_env(view), view)
    np.testing.assert_array_equal(episode(RandomControl.for_env(view), view)[0], first)
    assert not np.array_equal(episode(RandomControl.for_env(view, seed=1), view)[0], first)
    assert not np.array_equal(episode(RandomControl.for_env(view), view, state)[0], first)
    flat = first.reshape(-1)
    assert len(np.unique(flat)) == flat.size  # rounds, rows and knobs differ
    assert abs(float(flat.mean())) < 0.2
    assert 0.5 < float(flat.std()) < 0.65  # uniform over [-1, 1]: 0.577


def test_random_gives_the_same_federated_episode_for_the_same_seed() -> None:
    env = gym.make("DPilot/Clip-v0", **SMALL)

    def play() -> list[float]:
        controller = RandomControl.for_env(env)
        observation, _ = env.reset(seed=5)
        state, start, ended, seen = None, np.ones(1, dtype=bool), False, []
        while not ended:
            action, state = controller.predict(observation, state, start)
            observation, _, ended, _, info = env.step(action)
            seen.append(info["server_norm"])
            start = np.zeros(1, dtype=bool)
        return seen

    assert play() == play()
