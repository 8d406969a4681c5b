"""Controllers that come with the package: whole, described, and ready for settings that their training did not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from agents import load_controller
from agents.folders import CARD, RECORD, WEIGHTS, pretrained_folders
from envs import ControlLoop, EnvCore, Setting
from envs.playing import run_to_the_end
from fl_core.base.errors import InputError
from fl_core.models.layout import Outline
from fl_core.run.config import RunSettings

NAMES = list(pretrained_folders())
TINY: dict[str, Any] = {"clients": 12, "rounds": 6, "reward": "final-accuracy", "executor": "vectorized"}


def setting_of(name: str, **changes: Any) -> Setting:
    return Setting.of(**{**load_controller(f"pretrained:{name}").view, **TINY, "instances": "test", **changes})


def test_they_come_with_the_package_in_kilobytes() -> None:
    assert NAMES == ["budget", "clip", "joint"]
    for folder in pretrained_folders().values():
        assert {one.name for one in folder.iterdir()} == {RECORD, WEIGHTS, CARD, "train.yaml"}
        assert sum(one.stat().st_size for one in folder.iterdir()) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_it_was_trained_as_its_file_says_on_proxy_clients(name: str) -> None:
    controller = load_controller(f"pretrained:{name}")
    asked = yaml.safe_load((pretrained_folders()[name] / "train.yaml").read_text(encoding="utf-8"))
    about, settings = controller.blueprint.training, controller.blueprint.settings
    assert controller.population == "proxy"
    assert {one: about["config"][one] for one in asked["training"]} == asked["training"]
    for one in ("task", "knobs", "signals", "reward", "generator"):
        assert settings[one] == asked[one]
    assert about["validation_accuracy"] >= about["initial_validation_accuracy"]


@pytest.mark.parametrize("name", NAMES)
def test_its_card_tells_what_is_in_it(name: str) -> None:
    controller = load_controller(f"pretrained:{name}")
    card = (pretrained_folders()[name] / CARD).read_text(encoding="utf-8")
    assert card.startswith(f"# pretrained:{name}\n\n")
    headings = re.findall(r"^## (.+)$", card, re.MULTILINE)
    assert headings == ["Trained on", "Sees and sets", "Training cost", "Results", "Limits"]
    for knob in controller.view["knobs"].split(","):
        assert f"`{knob}`" in card
    assert f"{controller.training_rounds:,}" in card, "the cost of the training, in federated rounds"
    assert str(controller.blueprint.training["seed"]) in card


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 3, "epsilon": 2.0, "model": "mlp-wide"},
        {"clients": 40, "sampling_rate": 0.5, "learning_rate": 0.05},
        {"method": "fedglp-adp"},
        {"dataset": "mnist5k", "model": "cnn2", "clients": 6, "rounds": 2},
    ],
)
def test_it_acts_where_it_was_not_trained_within_the_budget(name: str, settings: dict[str, Any]) -> None:
    core = EnvCore(setting_of(name, **settings))
    controller = load_controller(f"pretrained:{name}", core)
    run_to_the_end(core, controller, [RunSettings(seed=3)], lambda done: None)
    assert core.rounds[0] >= 1
    assert not core.diverged(0)
    assert np.isfinite(core.final_accuracy(0))
    ledger = core.federation.charging.ledgers[0]
    assert ledger.epsilon_spent() <= ledger.epsilon * (1 + 1e-9)


@pytest.mark.parametrize("name", ["clip", "joint"])
def test_what_it_does_follows_the_length_of_the_updates(name: str) -> None:
    """Clip norms at the end of a run whose updates are 5 times longer are longer, and 5 times shorter, shorter."""
    core = EnvCore(setting_of(name, clients=50, rounds=20, epsilon=12.0), 3)
    controller = load_controller(f"pretrained:{name}", core)
    scales = (0.2, 1.0, 5.0)
    run_to_the_end(core, controller, [RunSettings(seed=3, update_scale=scale) for scale in scales], lambda done: None)
    norms = core.controls.state_dict()["clips.last"]
    assert norms[0] < norms[1] / 2 < norms[1] * 2 < norms[2]


@pytest.mark.parametrize("name", NAMES)
def test_it_steers_a_run_that_is_no_simulation(name: str) -> None:
    controller = load_controller(f"pretrained:{name}")
    setting = Setting.of(clients=20, rounds=4, **controller.view)
    loop = ControlLoop(setting, controller.for_env, Outline({"all": 64 * 32 + 32 + 330}, classes=10))
    given = loop.next_round()
    assert given is not None
    assert given.clip_norm > 0


def test_a_wrong_name_is_told_the_right_ones() -> None:
    with pytest.raises(InputError, match="pretrained controller 'clipp' is unknown; did you mean clip"):
        load_controller("pretrained:clipp")
    with pytest.raises(InputError, match="budget, clip, joint"):
        load_controller("pretrained:")


def test_a_method_without_the_knobs_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"knob 'clip_median' does not exist in method 'fedavg'; it has [^\n]+\.$"):
        EnvCore(setting_of("clip", method="fedavg", epsilon=float("inf")))


def test_a_folder_that_is_no_pretrained_name_is_still_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        load_controller(tmp_path / "pretrained")
