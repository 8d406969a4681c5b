"""Objects of a user stand where names do, in every face of an environment, also in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import Tensor, nn

import envs
from envs import DPilotProcessVecEnv, DPilotVecEnv, DPilotVectorEnv, EnvSpec, Generator, Setting
from envs.generators import Axis
from fl_core import Federation, FederationConfig, InputError, Recipe, RoundPlan
from tests.markdown import restored_catalogues

IMAGES = np.random.default_rng(0).random((300, 5)) + np.eye(3, 5)[np.arange(300) % 3]
DATA = (IMAGES, np.arange(300) % 3, np.arange(300) % 30)
SMALL: dict[str, Any] = {"clients": 6, "rounds": 2, "reward": "final-accuracy", "partition": "natural"}


class Net(nn.Module):
    """Logits of a linear layer, by a class that is no Sequential."""

    def __init__(self, shape: tuple[int, int, int], classes: int):
        super().__init__()
        self.head = nn.Linear(shape[2], classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.flatten(1))
        return logits


class Linear(nn.Sequential):
    """A single layer."""

    def __init__(self, shape: tuple[int, int, int], classes: int):
        super().__init__(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with restored_catalogues():
        yield


def own() -> dict[str, Any]:
    return {
        **SMALL,
        "dataset": DATA,
        "model": Net,
        "method": Recipe(name="mine", summary="dp-fedavg", source="a test"),
        "generator": Generator((Axis("epsilon", (4.0, 6.0)),)),
    }


def test_objects_play_in_every_face_alike() -> None:
    parts = own()
    env = gym.make("DPilot/Clip-v0", **parts)
    rows = DPilotVecEnv(2, **parts)
    vector = DPilotVectorEnv(2, **parts)
    spread = DPilotProcessVecEnv(2, processes=1, **parts)
    try:
        named = {"instance": 3}
        observations = [env.reset(options=named)[0], vector.reset(options=named)[0][0]]
        for face in (rows, spread):
            face.set_instances([3, 4])
            observations.append(face.reset()[0])
        for one in observations[1:]:
            np.testing.assert_allclose(one, observations[0], atol=1e-6)
        action = np.full((2, 1), 0.25, dtype=np.float32)
        steps = [env.step(action[0])[0], vector.step(action)[0][0], rows.step(action)[0][0], spread.step(action)[0][0]]
        for one in steps[1:]:
            np.testing.assert_allclose(one, steps[0], atol=1e-5)
    finally:
        spread.close()


def test_a_setting_of_objects_is_equal_to_itself_and_names_their_content() -> None:
    parts = own()
    setting = Setting.of(**parts)
    assert setting == Setting.of(**parts)
    record = setting.as_record()
    assert Setting.from_record(record) == setting
    assert sorted(one["kind"] for one in record["origins"].values()) == ["dataset", "generator", "method", "model"]
    dataset = record["origins"][setting.federation.dataset]
    assert len(dataset["sha256"]) == 64
    other = Setting.of(**{**parts, "dataset": (IMAGES + 1, *DATA[1:])})
    assert other.federation.dataset != setting.federation.dataset
    assert Setting.of(task="digits").origins == {}


def test_a_record_of_other_content_is_refused() -> None:
    record = Setting.of(**own()).as_record()
    name = next(name for name, one in record["origins"].items() if one["kind"] == "dataset")
    record["origins"][name]["sha256"] = "0" * 64
    with pytest.raises(InputError, match="was made with sha256 0000"):
        Setting.from_record(record)


def test_a_record_imports_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('ran', 'w').close()\nx = None")
    plain = Setting.of(task="digits").as_record()
    for change in (
        {"dataset": "evil.py:x"},
        {"model": "evil.py:x"},
        {"method": "evil.py:x"},
        {"generator": "evil.py:x"},
        {"generator": "dataset=digits|evil.py:x"},
        {"generator": "clients=5|6,model=mlp|evil.py:x"},
    ):
        with pytest.raises(InputError, match="imported only for who names it"):
            Setting.from_record(plain | change)
    assert not Path("ran").exists()


def test_what_cannot_be_handed_to_a_process_is_refused_in_one_sentence() -> None:
    class Local(Net):
        pass

    with pytest.raises(InputError, match=r"model 'Local-.*' cannot be handed to another process \(.*\); write it in"):
        DPilotProcessVecEnv(2, processes=1, **{**SMALL, "dataset": DATA, "model": Local})


def test_a_federation_takes_objects() -> None:
    config = FederationConfig(dataset=DATA, model=Net, partition="natural", clients=6, rounds=2)  # type: ignore[arg-type]
    federation = Federation(config)
    assert federation.model.size == 5 * 3 + 3
    assert federation.run_round(RoundPlan.constant(1)).ran.all()
    assert EnvSpec(generator=Generator()).generator.startswith("Generator")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dataset": 7}, "dataset is 7, but it must be text."),
        ({"model": 7}, "model is 7, but it must be text."),
        ({"method": 7}, "method is 7, but it must be text."),
        ({"generator": 7}, "generator is 7, but it must be text."),
        ({"dataset": object()}, "the dataset that was given is of type object"),
        ({"model": object()}, "the model that was given is of type object"),
        ({"method": object()}, "the method that was given is of type object"),
        ({"generator": object()}, "the generator that was given is of type object"),
        ({"generator": lambda: "epsilom=3..4"}, "generated setting 'epsilom' is unknown; did you mean epsilon"),
        (
            {"model": Linear, "method": "centaur"},
            "has one layer only, but method 'centaur' trains the last apart from others",
        ),
        ({"dataset": DATA, "partition": "natural", "clients": 40}, "clients is 40, but only 15 writers have"),
    ],
)
def test_what_is_no_part_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        envs.make_core(**{**SMALL, "partition": "iid", **settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
