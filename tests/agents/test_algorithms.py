from __future__ import annotations

import dataclasses
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, TD3

from agents import TrainingConfig, TrainingResult, load_controller, resume, train
from agents.algorithms import ALGORITHMS, POLICY_OPTIONS
from agents.checkpoint import load_checkpoint
from agents.config import option_names
from agents.options import OPTIONS, defaults_by_algorithm
from envs import DPilotVecEnv, Setting
from experiments.contenders.environments import Environments
from experiments.contenders.instances import deal
from experiments.contenders.play import Player, play
from fl_core.base.errors import InputError
from fl_core.run.federation import Federation
from tests.agents.conftest import TINY

WITH_ZOO = pytest.mark.skipif(find_spec("sb3_contrib") is None, reason="the extra zoo is not installed")
OTHERS = [
    pytest.param(name, marks=WITH_ZOO if one.place.startswith("sb3_contrib") else ())
    for name, one in ALGORITHMS.items()
    if name != "ppo"  # which the other tests take
]


def _config(algo: str) -> TrainingConfig:
    own: dict[str, Any] = {"network": (8,), "n_epochs": 2, "lstm_size": 4, "learning_starts": 2, "replay_batch": 8}
    own |= {"polyak": 0.5, "exploration_noise": 0.3}
    return TrainingConfig(
        algo=algo,
        environments=2,
        episodes_per_instance=1,
        episodes=6,
        validation_instances=2,
        validation_every=3,
        parallel="rows",
        **{name: value for name, value in own.items() if name in ALGORITHMS[algo].options},
    )


@pytest.fixture(scope="module", params=OTHERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(TINY, _config(request.param), tmp_path_factory.mktemp(request.param) / "run")


def _same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_learns_and_resumes_as_if_it_had_not_stopped(trained: TrainingResult, tmp_path: Path) -> None:
    """Weights, optimizers, the weight of the entropy, the replay buffer and what controls delayed updates."""

    def stop(entry: dict[str, Any]) -> None:
        if entry["update"] == 2:
            raise KeyboardInterrupt

    config = _config(trained.controller.blueprint.algo)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, config, tmp_path / "run", on_update=stop)
    early = load_checkpoint(tmp_path / "run")
    result = resume(tmp_path / "run")
    mine, theirs = load_checkpoint(tmp_path / "run"), load_checkpoint(trained.folder.parent)
    assert mine.progress == theirs.progress
    assert _same(mine.learner, theirs.learner)
    assert (result.folder / "controller.json").read_text() == (trained.folder / "controller.json").read_text()
    weights = [name for name in mine.learner if name.startswith("policy/")]
    assert any(not torch.equal(mine.learner[name], early.learner[name]) for name in weights)
    assert mine.progress.gradient_updates > early.progress.gradient_updates > 0


def test_saved_and_loaded_acts_identically(trained: TrainingResult) -> None:
    """Two copies, stepped side by side with the states that they return; one of four rows begins anew midway."""
    controller, loaded = trained.controller, load_controller(trained.folder)
    policy = controller.policy
    random = np.random.default_rng(0)
    state = plain = None
    for step in range(4):
        seen = random.uniform(-1, 1, (4, len(controller.blueprint.features))).astype(np.float32)
        start = np.array([step == 0, step == 0, step in (0, 2), step == 0])
        actions, state = loaded.predict(seen, state, start)
        expected, plain = policy.predict(seen, plain, start, deterministic=True)
        np.testing.assert_array_equal(actions, expected)
        assert actions.shape == (4, 1)
        assert (np.abs(actions) <= 1).all()
    assert (state is None) == (controller.blueprint.algo != "recurrent-ppo")


@WITH_ZOO
def test_the_state_of_a_memory_leads_with_rows(tmp_path: Path) -> None:
    """A row does not feel the others, and remembers; the first row alone is the first row of the batch."""
    controller = train(TINY, _config("recurrent-ppo"), tmp_path / "run").controller
    seen = np.random.default_rng(1).uniform(-1, 1, (3, len(controller.blueprint.features))).astype(np.float32)
    state = alone = None
    for _ in range(2):
        actions, state = controller.predict(seen, state)
        single, alone = controller.predict(seen[0], alone)
    assert state is not None
    assert all(part.shape[0] == 3 for part in state)
    np.testing.assert_allclose(single, actions[0], rtol=0, atol=1e-6)
    forgetful, _ = controller.predict(seen, state, np.array([True, False, False]))
    remembering, _ = controller.predict(seen, state)
    assert not np.allclose(forgetful[0], remembering[0], atol=1e-9)
    np.testing.assert_array_equal(forgetful[1:], remembering[1:])


@WITH_ZOO
def test_a_memory_plays_batches_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = train(TINY, _config("recurrent-ppo"), tmp_path / "run").controller
    asked = {**TINY, **controller.view, "instances": "test", "reward": "final-accuracy"}
    player = Player("x", "x", Setting.of(**asked), (lambda core: controller,))
    [whole], _ = play([player], deal([1, 2, 3]), Environments(), lambda _: None)
    monkeypatch.setattr("experiments.contenders.environments.rows_at_once", lambda *_: 2)
    [parts], _ = play([player], deal([1, 2, 3]), Environments(), lambda _: None)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one.trajectory["clip_norm"], other.trajectory["clip_norm"], rtol=1e-5)


# ---------------------------------------------------------------- options


def test_every_option_belongs_to_an_algorithm_and_is_checked() -> None:
    known = {name for one in ALGORITHMS.values() for name in one.options}
    assert known == set(option_names()) == set(OPTIONS)
    for name, algorithm in ALGORITHMS.items():
        if find_spec(algorithm.place.partition(":")[0]) is None:
            continue  # of the extra zoo
        TrainingConfig(algo=name, **{key: value for key, value in algorithm.options.items() if value is not None})


@pytest.mark.parametrize(("algo", "option"), [("sac", "clip_range"), ("ppo", "polyak"), ("td3", "ent_coef")])
def test_an_option_of_another_algorithm_is_refused(algo: str, option: str) -> None:
    with pytest.raises(InputError, match=rf"{option} is 0\.1, but algo '{algo}' has no such option; it belongs to "):
        TrainingConfig(algo=algo, **{option: 0.1})


@pytest.mark.parametrize(
    ("algo", "option", "value"),
    [
        ("sac", "polyak", 1.5),
        ("sac", "replay_ratio", 0.0),
        ("sac", "learning_starts", -1),
        ("td3", "exploration_noise", float("inf")),
        ("sac", "replay_batch", 1.5),
        ("ppo", "activation", "sine"),
    ],
)
def test_bad_values_of_options_are_refused(algo: str, option: str, value: Any) -> None:
    with pytest.raises(InputError, match=option):
        TrainingConfig(algo=algo, **{option: value})


@pytest.mark.parametrize("algo", ["ppo", "a2c", "sac", "td3", "ddpg"])
def test_options_reach_the_learner(algo: str, tmp_path: Path) -> None:
    """Each option away from its default changes what is built, under the name that stable-baselines3 gives it."""
    given: dict[str, Any] = {
        "n_epochs": 3, "minibatches": 2, "gae_lambda": 0.5, "clip_range": 0.1, "target_kl": 0.5, "ent_coef": 0.25,
        "vf_coef": 0.75, "max_grad_norm": 0.125, "replay_size": 64, "replay_batch": 4, "replay_ratio": 0.5,
        "learning_starts": 7, "polyak": 0.25, "exploration_noise": 0.375, "network": (5, 6), "activation": "relu",
        "log_std_init": -0.5,
    }  # fmt: skip
    algorithm = ALGORITHMS[algo]
    config = TrainingConfig(algo=algo, **{name: value for name, value in given.items() if name in algorithm.options})
    venv = DPilotVecEnv(2, **{**TINY, "knobs": "clip_norm,server_learning_rate", "reward": "final-accuracy"})
    learner: Any = algorithm.learner(config.options, venv, 4, learning_rate=lambda _: 0.1, gamma=0.5, device="cpu")
    found = {
        "n_epochs": lambda: learner.n_epochs,
        "minibatches": lambda: learner.n_steps * learner.n_envs // learner.batch_size,
        "gae_lambda": lambda: learner.gae_lambda,
        "clip_range": lambda: learner.clip_range(1.0),
        "target_kl": lambda: learner.target_kl,
        "ent_coef": lambda: learner.ent_coef,
        "vf_coef": lambda: learner.vf_coef,
        "max_grad_norm": lambda: learner.max_grad_norm,
        "replay_size": lambda: learner.replay_buffer.buffer_size * learner.n_envs,
        "replay_batch": lambda: learner.batch_size,
        "replay_ratio": lambda: learner.gradient_steps / 8,
        "learning_starts": lambda: learner.learning_starts,
        "polyak": lambda: learner.tau,
        "exploration_noise": lambda: learner.action_noise._sigma.max(),
        "activation": lambda: {torch.nn.ReLU: "relu"}[learner.policy.activation_fn],
        "log_std_init": lambda: learner.policy.log_std_init,
    }
    for name in algorithm.options:
        if name != "network":
            assert found[name]() == given[name], name
    shapes = [tuple(value.shape) for value in learner.policy.state_dict().values()]
    assert (5, len(venv.core.features)) in shapes
    assert (6, 5) in shapes
    if "exploration_noise" in algorithm.options:
        assert learner.action_noise().shape == (2,)


def test_the_policy_is_rebuilt_from_all_that_shapes_it() -> None:
    for name, algorithm in ALGORITHMS.items():
        arguments = algorithm.policy_arguments(TrainingConfig(algo="ppo").options | algorithm.options)
        assert set(arguments) <= set(POLICY_OPTIONS), name
        assert set(arguments) >= set(algorithm.options) & set(POLICY_OPTIONS), name


# ---------------------------------------------------------------- a line of the catalogue


class _TwoCritics(DDPG):
    """Its policy is not the one that its constructor says: rebuilt, it has one critic."""

    def _setup_model(self) -> None:
        self.policy_kwargs["n_critics"] = 2
        super()._setup_model()


class _Drifting(TD3):
    """Its policy acts by more than its weights."""

    def _setup_model(self) -> None:
        super()._setup_model()
        plain = self.policy.predict
        self.policy.predict = lambda *args, **kwargs: (-plain(*args, **kwargs)[0], None)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("place", "usual", "sentence"),
    [
        (f"{__name__}:_TwoCritics", "ddpg", "the rebuilt policy has other weights, among them critic.qf1"),
        (f"{__name__}:_Drifting", "td3", "could not be loaded again: the rebuilt policy takes other actions"),
        ("stable_baselines3:DQN", "td3", "DQN cannot be trained here"),
    ],
)
def test_what_could_not_be_loaded_is_refused_before_the_first_episode(
    place: str, usual: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "new", dataclasses.replace(ALGORITHMS[usual], place=place))

    def play(*_: Any, **__: Any) -> Any:
        raise AssertionError("an episode was played")

    monkeypatch.setattr(Federation, "run_round", play)
    with pytest.raises(InputError, match=sentence):
        train(TINY, _config("new"), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.json").exists()


def test_a_line_is_all_that_another_algorithm_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TD3 under a name of its own: trained, saved, loaded, resumed, named in the help."""
    monkeypatch.setitem(ALGORITHMS, "new", dataclasses.replace(ALGORITHMS["td3"], summary="a new one"))
    result = train(TINY, _config("new"), tmp_path / "run")
    assert load_controller(result.folder).blueprint.algo == "new"
    assert resume(tmp_path / "run").best_score == result.best_score
    assert defaults_by_algorithm("exploration_noise") == "td3, ddpg, new: 0.2"


@pytest.mark.parametrize("algo", ["recurrent-ppo", "tqc"])
def test_a_missing_package_names_the_extra(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(InputError, match=r"sb3-contrib, which is not installed; install the extra zoo"):
        TrainingConfig(algo=algo)


def test_a_saved_controller_of_a_missing_package_names_the_extra(
    trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ALGORITHMS[trained.controller.blueprint.algo].place.startswith("sb3_contrib"):
        load_controller(trained.folder)
        return
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    with pytest.raises(InputError, match=r"^TQC is part of|^RecurrentPPO is part of"):
        load_controller(trained.folder)
