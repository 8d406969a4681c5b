"""The records of a comparison: written and read without loss, and nothing but that is read."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.records.comparison import Comparison, ControllerResult, Episode, Instance
from fl_core.base.errors import InputError


def make_episode(seed: int, accuracy: float = 0.5, **changes: Any) -> Episode:
    """An episode with every field filled in plausibly."""
    values: dict[str, Any] = {
        "seed": seed,
        "global_accuracy": accuracy,
        "personal_accuracy": min(1.0, accuracy + 0.05),
        "epsilon_spent": 8.0,
        "epsilon_pld": 7.9,
        "rounds": 4,
        "diverged": False,
        "trajectory": {
            "clip_norm": [1.0, 0.8, 0.6, 0.5],
            "epsilon_spent": [4.0, 5.6, 6.9, 8.0],
            "evaluated_rounds": [2.0, 4.0],
            "global_accuracy": [accuracy / 2, accuracy],
            "personal_accuracy": [accuracy / 2, accuracy],
        },
    }
    return Episode(**(values | changes))


def make_controller(name: str, accuracies: Sequence[float] | Mapping[int, float], **changes: Any) -> ControllerResult:
    """A controller whose episodes end with these accuracies, by seed."""
    by_seed = accuracies if isinstance(accuracies, Mapping) else dict(enumerate(accuracies))
    values: dict[str, Any] = {
        "name": name,
        "label": name.replace("-", " "),
        "signals": "public",
        "signal_classes": ("public",),
        "training_rounds": 0,
        "search_rounds": 0,
        "tuned_on": "",
        "episodes": tuple(make_episode(seed, accuracy) for seed, accuracy in by_seed.items()),
    }
    return ControllerResult(**(values | changes))


def make_comparison(*controllers: ControllerResult, **changes: Any) -> Comparison:
    """A comparison of these controllers at (ε, δ) = (8, 1e-5)."""
    values: dict[str, Any] = {
        "task": "digits",
        "method": "dp-fedavg",
        "dataset": "digits",
        "clients": 50,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rounds": 4,
        "sampling": "full",
        "sampling_rate": 1.0,
        "accountant": "a Gaussian DP filter",
        "placement": "central",
        "device": "cpu",
        "executor": "vectorized",
        "wall_seconds": 61.2,
        "created": "2025-01-02",
        "command": "dpilot compare --task digits",
        "controllers": controllers or (make_controller("best-fixed", [0.5, 0.6]),),
    }
    return Comparison(**(values | changes))


def test_write_and_read_give_the_same_comparison(tmp_path: Path) -> None:
    instances = (Instance("free", math.inf, {"epsilon": math.inf, "clients": 50}), Instance("hard", 2.0, {}))
    played = tuple(make_episode(9, instance="free", training=training) for training in (0, 1))
    learned = make_controller("ppo", [], episodes=played, trainings=("seed 0", "seed 1"))
    fixed = make_controller("fixed:0.5", [], episodes=(make_episode(1, instance="hard"),))
    own = make_controller("dp-free", [], epsilon_target=math.inf, episodes=fixed.episodes)
    comparison = make_comparison(fixed, own, learned, epsilon=math.inf, instances=instances, hindsight=(fixed,))
    comparison.write(tmp_path / "c.json", {"of": [1.0, math.inf]})
    assert Comparison.read(tmp_path / "c.json") == comparison
    plain = json.loads((tmp_path / "c.json").read_text(), parse_constant=pytest.fail)
    assert plain["epsilon"] == "inf"
    assert plain["controllers"][1]["epsilon_target"] == "inf"
    assert plain["statistics"] == {"of": [1.0, "inf"]}


def test_a_diverged_run_is_kept_with_its_infinite_losses() -> None:
    trajectory = {"global_loss": [2.3, math.inf, math.nan]}
    episode = make_episode(1, 0.1, diverged=True, rounds=3, trajectory=trajectory)
    text = json.dumps(episode.to_json(), allow_nan=False)
    again = Episode.from_json(json.loads(text))
    assert again.series("global_loss")[1][:2] == [2.3, math.inf]
    assert math.isnan(again.series("global_loss")[1][2])


def test_numpy_numbers_are_written_as_json_numbers() -> None:
    episode = make_episode(0, np.float32(0.25), rounds=np.int64(4))  # type: ignore[arg-type]
    assert json.loads(json.dumps(episode.to_json()))["rounds"] == 4


def test_series_gives_evaluated_rounds_where_they_apply() -> None:
    episode = make_episode(0, 0.5)
    assert episode.series("global_accuracy") == ([2.0, 4.0], [0.25, 0.5])
    assert episode.series("clip_norm") == ([1.0, 2.0, 3.0, 4.0], [1.0, 0.8, 0.6, 0.5])
    assert episode.series("noise_multiplier") == ([], [])


def test_pairs_are_in_order_whatever_the_order_of_the_episodes() -> None:
    found = make_controller("x", {3: 0.3, 1: 0.1, 2: 0.2}).by_pair()
    assert list(found.items()) == [(("", 1), [0.1]), (("", 2), [0.2]), (("", 3), [0.3])]
    episodes = [
        make_episode(seed, 0.1 * training + 0.01 * seed, instance=instance, training=training)
        for training in (1, 0)
        for seed in (2, 1)
        for instance in ("b", "a")
    ]
    several = make_controller("ppo", [], episodes=tuple(episodes), trainings=("seed 0", "seed 1"))
    assert list(several.by_pair()) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert several.by_pair()["a", 2] == [0.02, 0.1 + 0.02]


def test_every_training_must_have_played_every_pair_once() -> None:
    def controller(*played: tuple[int, int]) -> ControllerResult:
        episodes = tuple(make_episode(seed, training=training) for training, seed in played)
        return make_controller("ppo", [], episodes=episodes, trainings=("seed 0", "seed 1"))

    controller((0, 1), (0, 2), (1, 1), (1, 2))
    for played, words in (
        (((0, 1), (0, 2), (1, 1)), "played different seeds"),
        (((0, 1), (0, 2)), "played different seeds"),
        (((0, 1), (1, 1), (1, 1)), "same seed in two episodes"),
        (((0, 1), (2, 1)), "episode of training 2, but 2 trainings"),
    ):
        with pytest.raises(InputError, match=words):
            controller(*played)
    with pytest.raises(InputError, match="names a training twice"):
        make_controller("ppo", [0.5], trainings=("seed 0", "seed 0"))


def test_instances_have_their_own_targets_and_are_known() -> None:
    easy, hard = Instance("easy", 8.0, {}), Instance("hard", 2.0, {"partition": "shards(1)", "epsilon": 2.0})
    played = make_controller("x", [], episodes=(make_episode(1, instance="easy"), make_episode(2, instance="hard")))
    comparison = make_comparison(played, instances=(easy, hard))
    assert comparison.targets == {"easy": 8.0, "hard": 2.0}
    assert make_comparison().targets == {"": 8.0}
    with pytest.raises(InputError, match="instance 'hard' is unknown"):
        make_comparison(played, instances=(easy,))
    with pytest.raises(InputError, match="names an instance twice"):
        make_comparison(played, instances=(easy, hard, hard))
    with pytest.raises(InputError, match="epsilon is 0"):
        Instance("none", 0.0, {})


def _broken(path: Sequence[str | int], value: Any) -> Any:
    data = copy.deepcopy(make_comparison().to_json())
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


EPISODE = ("controllers", 0, "episodes", 0)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("epsilon",), 0, "epsilon is 0"),
        (("epsilon",), "nan", "epsilon is nan"),
        (("epsilon",), True, "epsilon is True"),
        (("delta",), 1.0, "delta is 1.0"),
        (("sampling_rate",), 1.5, "sampling_rate is 1.5"),
        (("clients",), 2.5, "clients is 2.5"),
        (("wall_seconds",), "inf", "wall_seconds is inf"),
        (("command",), None, "command is None"),
        (("epsilonn",), 8, "did you mean epsilon"),
        (("controllers",), [], "no controllers"),
        (("controllers",), "many", "must be a list"),
        (("controllers", 0), 3, "JSON object"),
        (("controllers", 0, "episodes"), [], "no episodes"),
        (("controllers", 0, "signal_classes"), ["pubic"], "did you mean public"),
        (("controllers", 0, "search_rounds"), -1, "search_rounds is -1"),
        ((*EPISODE, "global_accuracy"), 1.01, "global_accuracy is 1.01"),
        ((*EPISODE, "global_accuracy"), "nan", "global_accuracy is nan"),
        ((*EPISODE, "epsilon_spent"), -1, "epsilon_spent is -1"),
        ((*EPISODE, "seed"), "1", "seed is '1'"),
        ((*EPISODE, "seed"), 1, "same seed"),
        ((*EPISODE, "diverged"), 0, "diverged is 0"),
        ((*EPISODE, "trajectory"), [1], "trajectory"),
        ((*EPISODE, "trajectory", "clip_norm"), ["a"], "lists of numbers"),
        ((*EPISODE, "trajectory", "global_accuracy"), [0.1], "has 1 values, expected 2"),
        ((*EPISODE, "trajectory", "evaluated_rounds"), [4, 2], "must increase"),
    ],
)
def test_bad_content_is_refused_in_one_sentence(path: Sequence[str | int], value: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        Comparison.from_json(_broken(path, value))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_missing_fields_and_other_files_are_refused(tmp_path: Path) -> None:
    data = make_comparison().to_json()
    del data["delta"]
    (tmp_path / "lacks.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"lacks\.json.*lacks the field 'delta'"):
        Comparison.read(tmp_path / "lacks.json")
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(InputError, match="no comparison"):
        Comparison.read(tmp_path / "other.json")
    with pytest.raises(InputError, match="could not be read"):
        Comparison.read(tmp_path / "none.json")


def test_names_and_labels_are_unique() -> None:
    first = make_controller("a", [0.1])
    with pytest.raises(InputError, match="called 'a'"):
        make_comparison(first, first)
    with pytest.raises(InputError, match="called 'A'"):
        make_comparison(make_controller("a", [0.1], label="A"), make_controller("b", [0.1], label="A"))


def test_unknown_controller_names_near_ones() -> None:
    with pytest.raises(InputError, match="did you mean best-fixed"):
        make_comparison().controller("best-fixd")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(json_values, st.sampled_from(sorted(make_comparison().to_json())))
def test_any_json_is_either_read_or_refused(value: Any, name: str) -> None:
    data = make_comparison().to_json()
    data[name] = value
    refused = None
    try:
        comparison = Comparison.from_json(data)
    except InputError as error:
        refused = str(error)
    if refused is None:
        assert Comparison.from_json(comparison.to_json()) == comparison
    else:
        assert "\n" not in refused
