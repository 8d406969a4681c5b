from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecMonitor, VecNormalize

from agents import LearnedController, TrainingResult, load_controller, save_controller
from agents.weights import write_tensors
from envs import DPilotEnv, DPilotProcessVecEnv, DPilotVecEnv, make_core
from fl_core.base.errors import InputError
from fl_core.base.sealed import digest_of
from tests.agents.conftest import TINY


def _observations(controller: LearnedController, count: int = 64) -> np.ndarray[Any, Any]:
    size = len(controller.blueprint.features)
    return np.random.default_rng(0).uniform(-1, 1, (count, size)).astype(np.float32)


def _rewrite(folder: Path, resign: bool = True, **changes: Any) -> None:
    """Change entries of the record (None removes one), with a digest that fits unless told otherwise."""
    path = folder / "controller.json"
    record = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            del record[name]
        else:
            record[name] = value
    if resign:
        record["digest"] = digest_of(record)
    path.write_text(json.dumps(record))


def test_saved_and_loaded_acts_identically(trained: TrainingResult, tmp_path: Path) -> None:
    controller = trained.controller
    seen = _observations(controller)
    save_controller(tmp_path / "copy", controller.blueprint, controller.policy.state_dict())
    loaded = load_controller(tmp_path / "copy")
    np.testing.assert_array_equal(loaded.predict(seen)[0], controller.policy.predict(seen, deterministic=True)[0])
    torch.manual_seed(1)
    sampled, _ = controller.policy.predict(seen, deterministic=False)
    torch.manual_seed(1)
    np.testing.assert_array_equal(loaded.predict(seen, deterministic=False)[0], sampled)
    assert loaded.describe() == controller.describe()


def test_saving_replaces_a_controller_but_nothing_else(trained: TrainingResult, tmp_path: Path) -> None:
    controller = trained.controller
    for _ in range(2):
        save_controller(tmp_path / "one", controller.blueprint, controller.policy.state_dict())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("unsaved")
    with pytest.raises(InputError, match="not overwritten"):
        save_controller(tmp_path / "other", controller.blueprint, controller.policy.state_dict())
    assert (tmp_path / "other" / "thesis.tex").exists()


def test_predict_shapes(trained: TrainingResult) -> None:
    seen = _observations(trained.controller, 3)
    actions, state = trained.controller.predict(seen)
    single, _ = trained.controller.predict(seen[0], state, np.ones(1, dtype=bool), deterministic=True)
    assert actions.shape == (3, 1)
    assert single.shape == (1,)
    assert actions.dtype == single.dtype == np.float32
    assert (np.abs(actions) <= 1).all()
    with pytest.raises(InputError, match="features"):
        trained.controller.predict(seen[:, :-1])


def test_loading_runs_no_pickle(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was read")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    load_controller(saved)


def test_record_says_what_it_is(trained: TrainingResult, saved: Path) -> None:
    record = json.loads((saved / "controller.json").read_text())
    assert record["algo"] == "ppo"
    assert record["knobs"] == [{"name": "clip_norm", "low": 0.1, "high": 8.0, "scale": "log"}]
    assert record["features"][0] == "round_fraction"
    assert record["training"]["cost"] == vars(trained.cost)
    assert record["training"]["seed"] == 0
    assert len(record["training"]["train_instances"]) == 6
    assert record["training"]["validation_accuracy"] == trained.best_score
    view = {"knobs": "clip_norm", "signals": "public", "decision_rounds": 2, "context": "hidden"}
    assert trained.controller.view == view
    assert trained.controller.training_rounds == trained.cost.total
    assert "PPO" in trained.controller.label


# ---------------------------------------------------------------- damage


def test_missing_files_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        load_controller(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no controller\.json"):
        load_controller(tmp_path / "empty")
    (saved / "controller.safetensors").unlink()
    with pytest.raises(InputError, match="could not be read"):
        load_controller(saved)


@pytest.mark.parametrize("name", ["controller.json", "controller.safetensors"])
@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_truncated_files_are_refused(saved: Path, name: str, keep: float) -> None:
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match=name):
        load_controller(saved)


@pytest.mark.parametrize("name", ["controller.json", "controller.safetensors"])
def test_one_changed_character_is_refused(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    place = content.rindex(b"7") if name.endswith("json") else len(content) - 3
    content[place] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        load_controller(saved)


def test_weights_of_another_controller_are_refused(saved: Path, trained: TrainingResult) -> None:
    other = {name: value + 1 for name, value in trained.controller.policy.state_dict().items()}
    write_tensors(saved / "controller.safetensors", other)
    with pytest.raises(InputError, match="exchanged"):
        load_controller(saved)


def test_weights_that_are_not_finite_are_refused(saved: Path, trained: TrainingResult) -> None:
    weights = dict(trained.controller.policy.state_dict())
    weights["log_std"] = torch.full_like(weights["log_std"], torch.nan)
    _rewrite(saved, weights_sha256=write_tensors(saved / "controller.safetensors", weights))
    with pytest.raises(InputError, match="not finite"):
        load_controller(saved)


def test_weights_of_another_shape_are_refused(saved: Path, trained: TrainingResult) -> None:
    weights = dict(trained.controller.policy.state_dict())
    weights["log_std"] = torch.zeros(2)
    _rewrite(saved, weights_sha256=write_tensors(saved / "controller.safetensors", weights))
    with pytest.raises(InputError, match="do not fit"):
        load_controller(saved)
    del weights["log_std"]
    _rewrite(saved, weights_sha256=write_tensors(saved / "controller.safetensors", weights))
    with pytest.raises(InputError, match="do not fit"):
        load_controller(saved)


def test_a_file_that_is_no_safetensors_is_refused(saved: Path) -> None:
    import hashlib

    (saved / "controller.safetensors").write_bytes(b"not weights")
    _rewrite(saved, weights_sha256=hashlib.sha256(b"not weights").hexdigest())
    with pytest.raises(InputError, match="not a safetensors file"):
        load_controller(saved)


@pytest.mark.parametrize(
    "key", ["algo", "policy", "features", "feature_bound", "knobs", "settings", "training", "weights_sha256"]
)
def test_a_missing_key_is_refused(saved: Path, key: str) -> None:
    _rewrite(saved, resign=False, **{key: None})
    with pytest.raises(InputError, match="changed since"):
        load_controller(saved)
    record = json.loads((saved / "controller.json").read_text())
    record["digest"] = digest_of(record)
    (saved / "controller.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="describes no controller"):
        load_controller(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"algo": "dqn"},
        {"algo": ["ppo"]},
        {"policy": {"network": [-3], "activation": "tanh", "log_std_init": 0.0}},
        {"policy": {"network": [8], "activation": "__import__", "log_std_init": 0.0}},
        {"policy": 3},
        {"features": []},
        {"feature_bound": "wide"},
        {"knobs": [{"name": "clip_norm"}]},
        {"settings": {}},
        {"training": {"seed": 0}},
    ],
)
def test_nonsense_with_a_fitting_digest_is_refused(saved: Path, changes: dict[str, Any]) -> None:
    _rewrite(saved, **changes)
    with pytest.raises(InputError):
        load_controller(saved)


@pytest.mark.parametrize("text", ["[]", "null", '{"format": true}', '{"format": 1, "x": NaN}', "\xff"])
def test_other_json_is_refused(saved: Path, text: str) -> None:
    (saved / "controller.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError):
        load_controller(saved)


def test_other_versions_are_refused(saved: Path) -> None:
    _rewrite(saved, format=2)
    with pytest.raises(InputError, match="format 2"):
        load_controller(saved)
    _rewrite(saved, format=1, dpilot="9.9.0")
    with pytest.raises(InputError, match=r"dpilot 9\.9\.0"):
        load_controller(saved)


# ---------------------------------------------------------------- fit


def test_fits_every_face_of_its_environment(trained: TrainingResult) -> None:
    settings = {**TINY, **trained.controller.view}
    trained.controller.check(make_core(2, **settings))
    trained.controller.check(DPilotEnv(**settings))
    trained.controller.check(DPilotVecEnv(2, **settings))
    trained.controller.check(DummyVecEnv([lambda: DPilotEnv(**settings)]))
    with pytest.raises(InputError, match="no DPilot environment"):
        trained.controller.check(object())


def test_fits_and_misfits_in_other_processes_are_found(saved: Path, trained: TrainingResult) -> None:
    """`evaluate_policy` shows a controller observations alone, so whoever loads it names the environment."""
    settings = {**TINY, **trained.controller.view}
    fitting, other = (partial(DPilotEnv, **{**settings, **more}) for more in ({}, {"decision_rounds": 1}))
    makers: dict[str, Callable[[Any], Any]] = {
        "DummyVecEnv": DummyVecEnv,
        "SubprocVecEnv": lambda rows: SubprocVecEnv(rows, start_method="fork"),
        "AsyncVectorEnv": gym.vector.AsyncVectorEnv,
        "SyncVectorEnv": gym.vector.SyncVectorEnv,
    }
    for name, make in makers.items():
        good, bad = make([fitting, fitting]), make([fitting, other])  # the second row alone differs
        assert load_controller(saved, env=good).blueprint == trained.controller.blueprint, name
        with pytest.raises(InputError, match="decides every 2 rounds"):
            load_controller(saved, env=bad)
        good.close()
        bad.close()
    spread = DPilotProcessVecEnv(2, processes=2, **settings)
    load_controller(saved, env=VecMonitor(spread))
    spread.close()


@pytest.mark.parametrize("wrapper", ["VecNormalize", "VecFrameStack", "RescaleAction", "NormalizeObservation"])
def test_wrappers_that_change_the_numbers_are_refused(wrapper: str, saved: Path, trained: TrainingResult) -> None:
    settings = {**TINY, **trained.controller.view}
    env, venv = DPilotEnv(**settings), DPilotVecEnv(1, **settings)
    wrapped: Any = {
        "VecNormalize": lambda: VecNormalize(venv),
        "VecFrameStack": lambda: VecFrameStack(venv, 2),
        "RescaleAction": lambda: gym.wrappers.RescaleAction(env, np.float32(0), np.float32(1)),
        "NormalizeObservation": lambda: gym.wrappers.NormalizeObservation(env),
    }[wrapper]()
    with pytest.raises(InputError, match=r"turn its (observations|actions) from|VecNormalize scales its observations"):
        load_controller(saved, env=wrapped)
    load_controller(saved, env=VecNormalize(venv, norm_obs=False))
    load_controller(saved, env=gym.wrappers.ClipAction(env))


@pytest.mark.parametrize("value", [2.5, -np.inf, np.nan])
def test_observations_that_no_environment_shows_are_refused(value: float, trained: TrainingResult) -> None:
    seen = np.zeros((2, len(trained.controller.blueprint.features)), dtype=np.float32)
    seen[1, 0] = value
    with pytest.raises(InputError, match=r"observation holds .*, but this ppo controller reads features in \[-2, 2\]"):
        trained.controller.predict(seen)


def test_memory_of_other_observations_is_refused(trained: TrainingResult) -> None:
    seen = np.zeros((2, len(trained.controller.blueprint.features)), dtype=np.float32)
    for state in ((np.zeros((3, 1)),), [np.zeros((2, 1))], "x"):
        with pytest.raises(InputError, match="state is"):
            trained.controller.predict(seen, state)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="episode_start has shape"):
        trained.controller.predict(seen, None, np.ones(3, dtype=bool))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signals": "paper"}, "signals"),
        ({"knobs": "server_learning_rate"}, "signals"),
        ({"knobs": "clip_norm,server_learning_rate"}, "signals"),
        ({"decision_rounds": 1}, "decision_rounds"),
    ],
)
def test_another_environment_is_refused(trained: TrainingResult, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trained.controller.check(make_core(1, **{**TINY, **trained.controller.view, **changes}))


def test_another_range_is_refused(saved: Path, trained: TrainingResult) -> None:
    _rewrite(saved, knobs=[{"name": "clip_norm", "low": 0.2, "high": 8.0, "scale": "log"}])
    with pytest.raises(InputError, match=r"from 0\.2 to 8"):
        load_controller(saved).check(make_core(1, **{**TINY, **trained.controller.view}))


def test_another_scale_of_a_signal_is_refused(saved: Path, trained: TrainingResult) -> None:
    """A signal of the same name that means something else; controllers from before scales were saved still load."""
    core = make_core(1, **{**TINY, **trained.controller.view})
    own = json.loads((saved / "controller.json").read_text())["scales"]
    assert own == [feature.scaled for feature in core.features]
    _rewrite(saved, scales=[f"{own[0]} / 2", *own[1:]])
    with pytest.raises(InputError, match=rf"{core.features[0].name} scaled as .* / 2, but the environment shows"):
        load_controller(saved).check(core)
    _rewrite(saved, scales=None)
    load_controller(saved).check(core)


def test_settings_from_before_they_existed_do_not_follow_a_default(
    saved: Path, trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = {k: v for k, v in trained.controller.blueprint.settings.items() if k not in ("context", "population")}
    _rewrite(saved, settings=older)
    monkeypatch.setattr("envs.setting.EnvSpec.context", "visible")
    loaded = load_controller(saved)
    assert loaded.view["context"] == "hidden"
    assert loaded.population == "all"


def test_other_weights_are_told_apart(saved: Path, trained: TrainingResult) -> None:
    weights = {name: value + 1 for name, value in trained.controller.policy.state_dict().items()}
    _rewrite(saved, weights_sha256=write_tensors(saved / "controller.safetensors", weights))
    assert load_controller(saved).describe() != trained.controller.describe()
    assert load_controller(trained.folder).describe() == trained.controller.describe()
