"""Several trainings named as one controller, compared on several instances against fixed clip norms in hindsight."""

from __future__ import annotations

import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.blueprint import Blueprint, knob_records
from agents.bundle import save_controller
from envs import Setting, make_core
from envs.signals import FEATURE_BOUND
from experiments.cli import main
from experiments.contenders import comparing
from experiments.contenders.bench import Bench
from experiments.contenders.instances import deal
from experiments.contenders.play import play
from experiments.contenders.preparing import make_players
from experiments.contenders.specs import training_folders
from experiments.contenders.trainings import load_trainings
from fl_core.base.errors import InputError

SETTINGS: dict[str, Any] = {"task": "digits", "clients": 10, "rounds": 3, "local_steps": 1, "executor": "vectorized"}
SETTING = Setting.of(**SETTINGS, instances="test")
OPTIONS = [part for name, value in SETTINGS.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def save(folder: Path, seed: int, training: dict[str, Any] | None = None, **changes: Any) -> Path:
    """An untrained PPO controller that says it was trained with a seed; its bias tells it from others."""
    settings = {**SETTINGS, "knobs": "clip_norm", "signals": "public", "decision_rounds": 1, **changes}
    core = make_core(1, **settings)
    blueprint = Blueprint(
        algo="ppo",
        arguments={"network": [4], "activation": "tanh", "log_std_init": -1.0},
        features=tuple(feature.name for feature in core.features),
        feature_bound=FEATURE_BOUND,
        knobs=knob_records(core),
        settings=settings,
        training={
            "seed": seed,
            "episodes": 8,
            "cost": {"rollouts": 24},
            "validation_instances": [1],
            **(training or {}),
        },
    )
    weights = blueprint.make_policy().state_dict()
    weights["action_net.bias"] = weights["action_net.bias"] * 0 + 0.3 * seed
    save_controller(folder, blueprint, weights)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for seed in range(3):
        save(folder / f"ppo-{seed}", seed)
    save(folder / "drawn", 7, generator="epsilon=3..12")
    save(folder / "again", 1)
    save(folder / "other", 7, local_steps=2)
    config = {"seed": 7, "learning_rate": 1e-3, "parallel": "rows"}
    save(folder / "config-7", 7, {"config": config, "code": "a"})
    save(folder / "config-8", 8, {"config": config | {"seed": 8, "parallel": "processes"}, "code": "a"})
    save(folder / "slow", 9, {"config": config | {"seed": 9, "learning_rate": 1e-4}, "code": "a"})
    save(folder / "edited", 9, {"config": config | {"seed": 9}, "code": "b"})
    return folder


def test_folders_are_listed_or_named_by_a_pattern(trained: Path) -> None:
    wanted = [trained / f"ppo-{seed}" for seed in range(3)]
    assert training_folders(f"ppo:{trained}/ppo-*") == wanted
    assert training_folders(f"ppo:{wanted[2]},{wanted[0]}") == [wanted[2], wanted[0]]
    [contender] = make_players([f"ppo:{trained}/ppo-*"], Bench(SETTING, 1))
    assert contender.trainings == ("seed 0", "seed 1", "seed 2")
    assert contender.label == "PPO (3 seeds)"
    assert contender.training_rounds == 72
    assert contender.tuned_on.startswith("3 trainings: 8 episodes")
    assert len(load_trainings(f"ppo:{trained}/config-7,{trained}/config-8").controllers) == 2


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ppo:", "names no folder"),
        ("ppo:,", "one of its comma-separated entries is empty"),
        ("ppo:{0}/none-*", "no folder fits"),
        ("ppo:{0}/ppo-1,{0}/ppo-1", "ppo-1' twice"),
        ("ppo:{0}/ppo-1,{0}/ppo-*", "ppo-1' twice"),
        ("ppo:{0}/ppo-1,{0}/again", "two trainings with seed 1"),
        ("ppo:{0}/config-7,{0}/slow", "was trained with agent learning_rate 0.0001, the first with 0.001"),
        ("ppo:{0}/config-7,{0}/edited", "was trained with code b, the first with a"),
        ("ppo:{0}/ppo-1,{0}/other", "was trained with local_steps 2, the first with 1"),
        ("ppo:{0}/ppo-1,{0}/drawn", "was trained with generator epsilon=3..12, the first with none"),
        ("sac:{0}/ppo-1", "was trained with ppo"),
        ("ppo:{0}/ppo-1,{0}/gone", "gone"),
    ],
)
def test_what_is_no_set_of_trainings_is_refused_in_one_sentence(trained: Path, spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_trainings(spec.format(trained))
    assert "\n" not in str(caught.value)


def test_controllers_with_one_label_are_told_apart(trained: Path) -> None:
    specs = [f"ppo:{trained}/ppo-1", f"ppo:{trained}/again"]
    labels = [contender.label for contender in make_players(specs, Bench(SETTING, 1))]
    assert labels == [f"PPO (seed 1) {trained}/ppo-1", f"PPO (seed 1) {trained}/again"]


def test_a_run_is_played_by_one_training(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--controller", f"ppo:{trained}/ppo-*", "--runs", str(tmp_path), *OPTIONS]
    assert main(arguments) == 2
    assert "names 3 trainings, but a run is played by one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_final_figures_do_not_depend_on_evaluating_every_round() -> None:
    bench = Bench(SETTING)
    players = make_players(["fixed:0.7"], bench)
    [full], _ = play(players, deal([1, 2]), bench.environments, lambda _: None)
    [short], _ = play(players, deal([1, 2]), bench.environments, lambda _: None, every_round=False)
    assert [replace(one, trajectory={}) for one in full] == short


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_over_trainings_instances_and_seeds(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "COARSE_VALUES", 3)  # clip norms in hindsight
    spec = f"ppo:{trained}/ppo-*"
    controllers = ["fixed:0.5", spec]
    vary = ["epsilon=4,8", "clients=10,12"]
    arguments = ["compare", "--controllers", *controllers, "--seeds", "2", "--hindsight", "--vary", *vary]
    assert main([*arguments, "--runs", str(tmp_path), *OPTIONS]) == 0
    (folder,) = tmp_path.iterdir()
    data = json.loads((folder / "comparison.json").read_text())
    names = ["epsilon 4, clients 10", "epsilon 4, clients 12", "epsilon 8, clients 10", "epsilon 8, clients 12"]
    assert [one["name"] for one in data["instances"]] == names
    fixed, learned = data["controllers"]
    pairs = [(name, 3_000_000 + 2 * place + offset) for place, name in enumerate(names) for offset in (0, 1)]
    assert sorted((e["instance"], e["seed"]) for e in fixed["episodes"]) == sorted(pairs)
    assert len(learned["episodes"]) == 3 * len(pairs)
    for episode in [*fixed["episodes"], *learned["episodes"]]:
        target = 4 if episode["instance"].startswith("epsilon 4") else 8
        assert 0.98 * target < episode["epsilon_spent"] <= target
    by_training = {e["training"]: e["trajectory"]["clip_norm"] for e in learned["episodes"] if e["seed"] == 3_000_000}
    clips = np.array([by_training[t] for t in range(3)])
    assert (np.diff(clips, axis=0) > 0).all()  # each training is played with its own weights
    clip_norms = [
        one["episodes"][0]["trajectory"] == {} and float(one["name"].split(":")[1]) for one in data["hindsight"]
    ]
    assert clip_norms == pytest.approx([0.1, (0.1 * 8) ** 0.5, 8.0])  # the range of the knob
    row = data["statistics"]["controllers"][1]
    assert (row["trainings"], row["pairs"], row["runs"]) == (3, 8, 24)
    assert [one["instance"] for one in row["hindsight_regret"]] == sorted(names)
    assert row["search_epsilon"] > 8
    lines = list(csv.DictReader((folder / "comparison.csv").read_text().splitlines()))
    assert len(lines) == 8 + 24 + 3 * 8
    text = (folder / "report.md").read_text()
    for words in ("PPO (3 seeds): 3 training seeds", "## Each instance", "best fixed clip norm in hindsight", *names):
        assert words in text


def test_one_that_comes_with_the_package_acts_anywhere_without_a_word_about_its_training() -> None:
    elsewhere = Setting.of(**{**SETTINGS, "epsilon": 3.0, "model": "mlp-small"}, instances="test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench = Bench(elsewhere)
        [player] = make_players(["pretrained:joint"], bench)
    assert (player.name, player.label) == ("pretrained:joint", "pretrained joint")
    assert player.tuned_population == "proxy"
    assert player.training_rounds is not None
    assert player.training_rounds > 1000
    [[episode]], _ = play([player], deal([3_000_001]), bench.environments, lambda _: None)
    assert episode.epsilon_spent <= 3.0 * (1 + 1e-9)
    for spec, words in (("pretrained:", "known are"), ("pretrained:/tmp", "is unknown")):
        with pytest.raises(InputError, match=words):
            training_folders(spec)
