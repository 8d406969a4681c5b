"""Policies that were trained elsewhere become controllers that act bit for bit as they did, and go back."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor, nn

from agents import ImportOptions, LearnedController, from_sb3, import_policy, load_controller, save_controller
from agents.sb3_models import read_zip
from envs import DPilotEnv, DPilotProcessVecEnv, DPilotVecEnv, Setting, make_core
from fl_core.base.errors import InputError

SMALL: dict[str, Any] = {"clients": 8, "rounds": 4, "partition": "iid", "executor": "vectorized"}
SETTING = Setting.of(**SMALL)
FEATURES = 6


def observations(count: int = 32, bound: float = 2.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).uniform(-bound, bound, (count, FEATURES)).astype(np.float32)


def environments() -> DPilotVecEnv:
    return DPilotVecEnv(2, **SMALL)


def ppo(venv: Any = None, **keywords: Any) -> PPO:
    return PPO("MlpPolicy", venv or environments(), n_steps=4, batch_size=8, device="cpu", **keywords)


MODELS: dict[str, Callable[[], BaseAlgorithm]] = {
    "ppo": ppo,
    "ppo unlike networks": lambda: ppo(policy_kwargs={"net_arch": {"pi": [16], "vf": [8, 4]}, "activation_fn": nn.ELU}),
    "ppo without hidden layers": lambda: ppo(policy_kwargs={"net_arch": []}),
    "ppo state-dependent exploration": lambda: ppo(use_sde=True, policy_kwargs={"squash_output": True}),
    "ppo optimizer": lambda: ppo(policy_kwargs={"optimizer_class": torch.optim.RMSprop, "ortho_init": False}),
    "a2c": lambda: A2C("MlpPolicy", environments(), device="cpu"),
    "sac": lambda: SAC("MlpPolicy", environments(), device="cpu", policy_kwargs={"net_arch": [16], "n_critics": 3}),
    "sac state-dependent exploration": lambda: SAC(
        "MlpPolicy", environments(), device="cpu", use_sde=True, policy_kwargs={"net_arch": [16]}
    ),
    "td3": lambda: TD3("MlpPolicy", environments(), device="cpu", policy_kwargs={"net_arch": {"pi": [8], "qf": [16]}}),
    "ddpg": lambda: DDPG("MlpPolicy", environments(), device="cpu", policy_kwargs={"net_arch": [8, 8]}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plain_model_acts_alike_without_its_pickles(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[name]()
    model.save(tmp_path / "model")
    with monkeypatch.context() as patched:
        for reader in ("load", "loads", "Unpickler"):
            patched.setattr(pickle, reader, _refuse)
        controller = import_policy(tmp_path / "model.zip", SETTING)
    assert controller.blueprint.algo == name.partition(" ")[0]
    assert controller.training_rounds is None
    save_controller(tmp_path / "saved", controller.blueprint, controller.tensors)
    loaded = load_controller(tmp_path / "saved")
    wanted, _ = model.predict(observations(), deterministic=True)
    np.testing.assert_array_equal(loaded.predict(observations())[0], wanted)
    np.testing.assert_array_equal(from_sb3(model).predict(observations())[0], wanted)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a pickle is read")


def test_a_recurrent_model_keeps_its_memory(tmp_path: Path) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    model = contrib.RecurrentPPO(
        "MlpLstmPolicy", environments(), n_steps=4, batch_size=8, device="cpu", policy_kwargs={"lstm_hidden_size": 8}
    )
    model.save(tmp_path / "model")
    controller = import_policy(tmp_path / "model.zip", SETTING)
    mine: Any = None
    theirs: Any = None
    start = np.ones(32, dtype=bool)
    for _ in range(3):
        actions, mine = controller.predict(observations(), mine, start)
        wanted, theirs = model.predict(observations(), theirs, start, deterministic=True)
        np.testing.assert_array_equal(actions, wanted)
        start = np.zeros(32, dtype=bool)


# ---------------------------------------------------------------- VecNormalize


@pytest.fixture
def normalized(tmp_path: Path) -> tuple[Path, Path, PPO]:
    """Files of a model and of the statistics that it was trained with, and the model."""
    venv = VecNormalize(environments())
    model = ppo(venv).learn(16)
    model.save(tmp_path / "model")
    venv.save(str(tmp_path / "statistics.pkl"))
    return tmp_path / "model.zip", tmp_path / "statistics.pkl", model


def test_statistics_of_observations_come_along(normalized: tuple[Path, Path, PPO], tmp_path: Path) -> None:
    path, statistics, model = normalized
    wrapper = model.get_vec_normalize_env()
    assert wrapper is not None
    wanted, _ = model.predict(wrapper.normalize_obs(observations()), deterministic=True)
    imported = import_policy(path, SETTING, ImportOptions(normalization=str(statistics), trust=True))
    for controller in (imported, from_sb3(model)):
        save_controller(tmp_path / "saved", controller.blueprint, controller.tensors)
        np.testing.assert_array_equal(load_controller(tmp_path / "saved").predict(observations())[0], wanted)
    plain = import_policy(path, SETTING, ImportOptions(normalization="none"))
    assert not np.allclose(plain.predict(observations())[0], wanted)


def test_statistics_are_not_forgotten_and_not_trusted(normalized: tuple[Path, Path, PPO]) -> None:
    path, statistics, _ = normalized
    with pytest.raises(InputError, match="trained under VecNormalize; give the statistics"):
        import_policy(path, SETTING)
    with pytest.raises(InputError, match="is a pickle, which may run any code"):
        import_policy(path, SETTING, ImportOptions(normalization=str(statistics)))
    statistics.write_bytes(pickle.dumps({"mean": 0}))
    with pytest.raises(InputError, match="holds a dict, not a VecNormalize"):
        import_policy(path, SETTING, ImportOptions(normalization=str(statistics), trust=True))
    statistics.write_bytes(b"\x80")
    with pytest.raises(InputError, match="could not be loaded"):
        import_policy(path, SETTING, ImportOptions(normalization=str(statistics), trust=True))


# ---------------------------------------------------------------- back to stable-baselines3


@pytest.mark.parametrize("name", ["ppo unlike networks", "a2c", "sac", "td3", "ppo state-dependent exploration"])
def test_a_controller_goes_on_learning_in_stable_baselines3(name: str) -> None:
    controller = from_sb3(MODELS[name]())
    model = controller.to_sb3(controller.make_vec_env(2), learning_rate=1e-2)
    before, _ = model.predict(observations(), deterministic=True)
    np.testing.assert_array_equal(before, controller.predict(observations())[0])
    model.learn(160)
    after, _ = model.predict(observations(), deterministic=True)
    assert not np.array_equal(before, after)
    again = from_sb3(model)
    np.testing.assert_array_equal(again.predict(observations())[0], after)
    assert again.blueprint.arguments == controller.blueprint.arguments


def test_a_trained_controller_goes_on_with_its_own_settings(trained: Any) -> None:
    controller: LearnedController = trained.controller
    model: Any = controller.to_sb3(controller.make_vec_env(2))
    config = controller.blueprint.training["config"]
    assert (model.n_epochs, model.gamma, model.learning_rate) == (2, config["gamma"], config["learning_rate"])
    assert model.n_steps == 2  # decisions of an episode


def test_statistics_go_back_into_the_environment(normalized: tuple[Path, Path, PPO]) -> None:
    controller = from_sb3(normalized[2])
    model = controller.to_sb3(controller.make_vec_env(2))
    wrapper = model.get_vec_normalize_env()
    assert wrapper is not None
    actions, _ = model.predict(wrapper.normalize_obs(observations()), deterministic=True)
    np.testing.assert_array_equal(actions, controller.predict(observations())[0])
    model.learn(8)
    assert from_sb3(model).normalization is not None


def test_environments_of_a_controller_are_those_of_its_training() -> None:
    settings = {**SMALL, "knobs": "clip_norm,server_learning_rate", "signals": "paper", "decision_rounds": 2}
    controller = from_sb3(ppo(DPilotVecEnv(1, **settings)))
    env = controller.make_env(instances="test")
    assert isinstance(env, DPilotEnv)
    assert (env.core.spec.decision_rounds, env.core.spec.signals) == (2, "paper")
    assert env.core.task.federation.population == "target"
    assert controller.make_env().core.task.federation.population == "proxy"
    observation, _ = env.reset(seed=3_000_000) if "seed" not in SMALL else env.reset()
    assert env.observation_space.contains(observation)
    with pytest.raises(InputError, match="decides every 2 rounds"):
        controller.make_env(decision_rounds=1)
    with pytest.raises(InputError, match="was trained on the signals"):
        controller.to_sb3(environments())


def test_gymnasium_environments_and_keywords_are_taken() -> None:
    controller = from_sb3(ppo())
    env = gym.make("DPilot/Clip-v0", **SMALL)
    model: Any = controller.to_sb3(env, n_steps=8, batch_size=4)
    assert model.n_steps == 8
    model.learn(8)
    with pytest.raises(InputError, match="cannot be trained here"):
        controller.to_sb3(env, lerning_rate=1)


def test_environments_that_scale_what_the_controller_reads_are_refused() -> None:
    controller = from_sb3(ppo())
    scaled = VecNormalize(environments())
    with pytest.raises(InputError, match="VecNormalize scales its observations"):
        controller.to_sb3(scaled)
    assert controller.to_sb3(VecNormalize(environments(), norm_obs=False))


@pytest.mark.parametrize("kind", ["DPilotVectorEnv", "AsyncVectorEnv", "EnvCore"])
def test_what_stable_baselines3_cannot_learn_on_is_refused(kind: str) -> None:
    controller = from_sb3(ppo())
    env = {
        "DPilotVectorEnv": lambda: gym.make_vec("DPilot/Clip-v0", 2, **SMALL),
        "AsyncVectorEnv": lambda: gym.vector.AsyncVectorEnv([lambda: DPilotEnv(**SMALL)]),
        "EnvCore": lambda: make_core(2, **SMALL),
    }[kind]()
    with pytest.raises(InputError, match=f"A {kind} is no environment of stable-baselines3"):
        controller.to_sb3(env)
    getattr(env, "close", lambda: None)()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decision_rounds": 2}, "decides every 1 rounds"),
        ({"knobs": "server_learning_rate"}, "was trained on the signals"),
    ],
)
def test_a_model_in_another_environment_than_its_own_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_sb3(ppo(), DPilotVecEnv(2, **SMALL, **changes))


def test_a_model_whose_observations_were_scaled_needs_what_scaled_them(normalized: tuple[Path, Path, PPO]) -> None:
    alone = PPO.load(normalized[0], device="cpu")
    with pytest.raises(InputError, match="trained under VecNormalize"):
        from_sb3(alone, environments())
    wrapper = normalized[2].get_vec_normalize_env()
    np.testing.assert_array_equal(
        from_sb3(alone, wrapper).predict(observations())[0], from_sb3(normalized[2]).predict(observations())[0]
    )
    rescaled = gym.wrappers.RescaleObservation(DPilotEnv(**SMALL), np.float32(-1), np.float32(1))
    with pytest.raises(InputError, match=r"observations from \(6,\) in \[-2, 2\] into \(6,\) in \[-1, 1\]"):
        from_sb3(ppo(rescaled))
    wrapped = VecNormalize(environments(), norm_obs=False)
    assert from_sb3(ppo(wrapped), wrapped).normalization is None


def test_a_controller_goes_to_processes_and_back() -> None:
    controller = from_sb3(ppo())
    spread = DPilotProcessVecEnv(2, processes=2, **SMALL)
    try:
        model = controller.to_sb3(spread, n_steps=4, batch_size=8)
        assert from_sb3(model).describe()["weights_sha256"] == controller.describe()["weights_sha256"]
        assert model.learn(8).num_timesteps == 8
    finally:
        spread.close()


# ---------------------------------------------------------------- policies of one's own, TorchScript


class Extractor(BaseFeaturesExtractor):
    """Features of a user's own making."""

    def __init__(self, space: gym.spaces.Box):
        super().__init__(space, features_dim=3)
        self.layer = nn.Sequential(nn.Linear(FEATURES, 3), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        seen: Tensor = self.layer(x)
        return seen


def test_a_policy_of_its_own_class_needs_trust_and_becomes_a_graph(tmp_path: Path) -> None:
    model = ppo(policy_kwargs={"features_extractor_class": Extractor})
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"cannot be read without its pickles, which may run any code: .*Extractor"):
        import_policy(tmp_path / "model.zip", SETTING)
    with pytest.raises(InputError, match="say with --algo which algorithm"):
        import_policy(tmp_path / "model.zip", SETTING, ImportOptions(trust=True))
    wanted, _ = model.predict(observations(), deterministic=True)
    imported = import_policy(tmp_path / "model.zip", SETTING, ImportOptions(trust=True, algo="ppo"))
    for controller in (imported, from_sb3(model)):
        save_controller(tmp_path / "saved", controller.blueprint, controller.tensors)
        loaded = load_controller(tmp_path / "saved")
        np.testing.assert_allclose(loaded.predict(observations())[0], wanted, rtol=0, atol=1e-6)
        with pytest.raises(InputError, match="only acts"):
            loaded.to_sb3(environments())


class Network(nn.Module):
    """A policy as other libraries have it."""

    def __init__(self, features: int = FEATURES, knobs: int = 1):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, 8), nn.ELU(), nn.Linear(8, 2 * knobs))

    def forward(self, x: Tensor) -> Tensor:
        mean, _ = self.body(x).chunk(2, -1)
        return torch.tanh(mean)


@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.zeros(1, FEATURES))])
@pytest.mark.filterwarnings("ignore")
def test_torchscript_becomes_a_graph(make: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    network = Network().eval()
    make(network).save(str(tmp_path / "policy.pt"))
    with pytest.raises(InputError, match="TorchScript program, which may do anything"):
        import_policy(tmp_path / "policy.pt", SETTING)
    controller = import_policy(tmp_path / "policy.pt", SETTING, ImportOptions(trust=True, training_rounds=7))
    save_controller(tmp_path / "saved", controller.blueprint, controller.tensors)
    loaded = load_controller(tmp_path / "saved")
    wanted = network(torch.from_numpy(observations())).detach().numpy()
    np.testing.assert_array_equal(loaded.predict(observations())[0], wanted)
    assert loaded.predict(observations()[0])[0].shape == (1,)
    assert loaded.training_rounds == 7
    assert loaded.blueprint.algo == "torchscript"


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            return x[:, :1]
        return -x[:, :1]


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.rand_like(x[:, :1])


class Several(Network):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x[:, :1], x[:, 1:2]


class Dividing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :1] - x[:, :1]) / (x[:, :1] - x[:, :1])


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Branching(), "prim::If"),
        (Random(), "aten::rand_like"),
        (Several(), "cannot be imported"),
        (Network(features=5), r"policy failed on observations \(16, 6\)"),
        (Network(knobs=2), r"actions of shape \(16, 2\), but it must be \(16, 1\)"),
        (Dividing(), "not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torchscript_that_cannot_act_is_refused(network: nn.Module, words: str, tmp_path: Path) -> None:
    torch.jit.script(network.eval()).save(str(tmp_path / "policy.pt"))
    with pytest.raises(InputError, match=words):
        import_policy(tmp_path / "policy.pt", SETTING, ImportOptions(trust=True))


@pytest.mark.filterwarnings("ignore")
def test_a_saved_graph_holds_operators_alone(tmp_path: Path) -> None:
    torch.jit.script(Network().eval()).save(str(tmp_path / "policy.pt"))
    controller = import_policy(tmp_path / "policy.pt", SETTING, ImportOptions(trust=True))
    steps = [["from_file", ["'/etc/passwd"], {}, ["%1"]]]
    spoilt = {**controller.blueprint.arguments, "steps": steps}
    blueprint = type(controller.blueprint)(**{**vars(controller.blueprint), "arguments": spoilt})
    save_controller(tmp_path / "saved", blueprint, controller.tensors)
    with pytest.raises(InputError, match="'from_file' is none of the operators"):
        load_controller(tmp_path / "saved")


# ---------------------------------------------------------------- ONNX


@pytest.fixture
def onnx_file(tmp_path: Path) -> Callable[..., Path]:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")

    def write(outputs: int = 1, features: int = FEATURES, batch: int | str = "n") -> Path:
        helper, kind = onnx.helper, onnx.TensorProto.FLOAT
        weights = np.linspace(-1, 1, features, dtype=np.float32).reshape(features, 1)
        nodes = [helper.make_node("MatMul", ["obs", "w"], ["y"]), helper.make_node("Tanh", ["y"], ["action"])]
        results = [helper.make_tensor_value_info(name, kind, [batch, 1]) for name in ("action", "y")[:outputs]]
        graph = helper.make_graph(
            nodes,
            "policy",
            [helper.make_tensor_value_info("obs", kind, [batch, features])],
            results,
            [onnx.numpy_helper.from_array(weights, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 9
        onnx.save(model, str(tmp_path / "policy.onnx"))
        return tmp_path / "policy.onnx"

    return write


@pytest.mark.parametrize("batch", ["n", 1])
def test_onnx_acts_alike(onnx_file: Callable[..., Path], batch: int | str, tmp_path: Path) -> None:
    controller = import_policy(onnx_file(batch=batch), SETTING)
    save_controller(tmp_path / "saved", controller.blueprint, controller.tensors)
    wanted = np.tanh(observations() @ np.linspace(-1, 1, FEATURES, dtype=np.float32)[:, None])
    found, _ = load_controller(tmp_path / "saved").predict(observations())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_onnx_with_other_sizes_or_outputs_is_refused(onnx_file: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has the outputs action, y; say with --output"):
        import_policy(onnx_file(outputs=2), SETTING)
    assert import_policy(onnx_file(outputs=2), SETTING, ImportOptions(output="action")).label == "ONNX (policy)"
    with pytest.raises(InputError, match="output is 'value'"):
        import_policy(onnx_file(outputs=2), SETTING, ImportOptions(output="value"))
    with pytest.raises(InputError, match="policy failed on observations"):
        import_policy(onnx_file(features=5), SETTING)
    whole = onnx_file().read_bytes()
    (tmp_path / "policy.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"no model in ONNX, or a damaged one|does not take the model"):
        import_policy(tmp_path / "policy.onnx", SETTING)


def test_onnx_without_onnxruntime_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    (tmp_path / "policy.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=r"pip install 'dpilot\[onnx\]'"):
        import_policy(tmp_path / "policy.onnx", SETTING)


# ---------------------------------------------------------------- wrong files


def _changed(path: Path, name: str, content: bytes | None) -> None:
    """Replace one part of a zip; None leaves it out."""
    with zipfile.ZipFile(path) as archive:
        parts = {one: archive.read(one) for one in archive.namelist()}
    parts.pop(name)
    with zipfile.ZipFile(path, "w") as archive:
        for one, own in {**parts, **({} if content is None else {name: content})}.items():
            archive.writestr(one, own)


SPOILS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:2000]), "no zip, or a truncated one"),
    "text": (lambda path: path.write_text("hello"), "no zip, or a truncated one"),
    "empty": (lambda path: path.write_bytes(b""), "no zip, or a truncated one"),
    "no data": (lambda path: _changed(path, "data", None), "a zip without data"),
    "no weights": (lambda path: _changed(path, "policy.pth", None), "a zip without policy.pth"),
    "broken data": (lambda path: _changed(path, "data", b"{"), "is damaged"),
    "list": (lambda path: _changed(path, "data", b"[]"), "does not describe a model"),
    "deep": (lambda path: _changed(path, "data", b"[" * 100_000), "is damaged"),
    "pickled weights": (
        lambda path: _changed(path, "policy.pth", pickle.dumps(_Exploding())),
        "is damaged: its description or its weights",
    ),
    "no kwargs": (lambda path: _without(path, "policy_kwargs"), "does not describe a model"),
    "no shape": (lambda path: _without(path, "observation_space", "_shape"), "describes no model"),
}


class _Exploding:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _without(path: Path, name: str, inner: str = "") -> None:
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    (data[name] if inner else data).pop(inner or name)
    _changed(path, "data", json.dumps(data).encode())


@pytest.mark.parametrize("name", SPOILS)
def test_a_damaged_zip_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    spoil, words = SPOILS[name]
    path = tmp_path / "model.zip"
    ppo().save(path)
    spoil(path)
    with pytest.raises(InputError, match=words) as caught:
        import_policy(path, SETTING)
    assert "\n" not in str(caught.value)


def test_models_of_other_sizes_algorithms_and_places_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    ppo(DPilotVecEnv(1, **SMALL, signals="paper")).save(path)
    with pytest.raises(InputError, match="trained on observations of shape"):
        import_policy(path, SETTING)
    ppo(DPilotVecEnv(1, **SMALL, knobs="clip_norm,server_learning_rate")).save(path)
    with pytest.raises(InputError, match="trained on observations of shape"):
        import_policy(path, SETTING)
    ppo().save(path)
    with pytest.raises(InputError, match="was trained with ppo, not with sac"):
        import_policy(path, SETTING, ImportOptions(algo="sac"))
    PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu").save(path)
    with pytest.raises(InputError, match="trained on observations of shape"):
        import_policy(path, SETTING)
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").save(path)
    with pytest.raises(InputError, match="of none of the algorithms"):
        import_policy(path, SETTING)
    with pytest.raises(InputError, match="does not exist"):
        import_policy(tmp_path / "none.zip", SETTING)
    with pytest.raises(InputError, match="is a folder"):
        import_policy(tmp_path, SETTING)
    torch.save(ppo().policy.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InputError, match="holds weights without the network"):
        import_policy(tmp_path / "weights.pt", SETTING)


def test_a_diverged_model_is_refused(tmp_path: Path) -> None:
    model = ppo()
    with torch.no_grad():
        model.policy.action_net.weight.fill_(float("nan"))
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="not finite: the training diverged"):
        import_policy(tmp_path / "model.zip", SETTING)


def test_facts_are_read_from_the_text(tmp_path: Path) -> None:
    model = ppo(seed=5).learn(16)
    model.save(tmp_path / "model")
    facts = read_zip(tmp_path / "model.zip").facts
    assert (facts.seed, facts.timesteps, facts.normalized) == (5, 16, False)
    assert facts.observation_bounds == (-2.0, 2.0)
    assert facts.action_bounds == (-1.0, 1.0)
