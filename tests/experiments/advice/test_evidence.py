"""Evidence: the committed pages, and pages by hand, are read as what they are."""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import pytest
from setuptools import find_namespace_packages

from experiments.advice.evidence import BASELINE, PAGES, Evidence, Place, near, read_page, read_pages
from experiments.advice.rule import fitted
from fl_core.base.errors import InputError
from fl_core.data.partition import concentration
from tests.import_graph import ROOT

FOLDER = ROOT / PAGES.replace(".", "/")
OPTIONS = {"command": "compare", "task": "digits", "clients": 50}


def line(controller: str, seed: int, accuracy: float, **changes: Any) -> dict[str, str]:
    usual = {
        "task": "digits",
        "method": "dp-fedavg",
        "dataset": "digits",
        "population": "target",
        "clients": 50,
        "epsilon": 7.5,
        "delta": 1e-05,
        "planned_rounds": 40,
        "role": "controller",
        "controller": controller,
        "training_rounds": 0,
        "search_rounds": 0,
        "signal_classes": "public",
        "instance": "",
        "seed": seed,
        "global_accuracy": accuracy,
    }
    return {name: str(value) for name, value in {**usual, **changes}.items()}


def page(*lines: dict[str, str], **options: Any) -> list[Evidence]:
    return list(read_page("by hand", {**OPTIONS, **options}, lines))


def lines_of(**changes: Any) -> Iterator[dict[str, str]]:
    for seed in range(8):
        yield line(BASELINE, seed, 0.5 + 0.01 * seed, **changes)
        yield line("fixed:1x", seed, 0.53 + 0.01 * seed, **changes)


HERE = page(*lines_of())[0].place()


def test_a_place_follows_from_settings_alone() -> None:
    agreement = fitted().agreement_of(concentration("shards(3)", 10))
    assert HERE.signal == pytest.approx(agreement * 50 * 40**0.5 / (4.005 * 2410**0.5), rel=1e-3)
    assert (HERE.epsilon, HERE.clients) == (7.5, 50)
    assert HERE.norm == pytest.approx(1.32, abs=0.1)
    assert page(*lines_of(), update_scale=2.0)[0].place().norm == pytest.approx(2 * HERE.norm, rel=1e-5)


def test_a_gain_is_the_mean_difference_on_the_same_seeds() -> None:
    found = near(HERE, page(*lines_of()))
    [gain] = found.gains
    assert gain.controller == "fixed:1x"
    assert gain.difference is not None
    assert gain.difference.mean == pytest.approx(0.03)
    assert (gain.difference.pairs, gain.free, gain.raw, gain.page) == (8, True, False, "by hand")
    assert found.nearest[0] == pytest.approx(0, abs=1e-9)


def test_trainings_are_averaged_and_seeds_without_a_partner_left_out() -> None:
    rows = [line("ppo:runs/x", seed, accuracy, training_rounds=40) for seed in (0, 1) for accuracy in (0.6, 0.8)]
    [gain] = near(HERE, page(line(BASELINE, 0, 0.5), line(BASELINE, 5, 0.9), *rows)).gains
    assert gain.difference is not None
    assert (gain.difference.pairs, gain.free) == (1, False)
    assert gain.difference.mean == pytest.approx(0.2)


def test_a_controller_that_sees_exact_figures_is_marked_and_hindsight_is_no_evidence() -> None:
    exact = [line("aqc-exact", seed, 0.6, signal_classes="public raw") for seed in range(8)]
    grid = [line("fixed:3", seed, 0.9, role="hindsight") for seed in range(8)]
    gains = {one.controller: one for one in near(HERE, page(*lines_of(), *exact, *grid)).gains}
    assert set(gains) == {"fixed:1x", "aqc-exact"}
    assert gains["aqc-exact"].raw


@pytest.mark.parametrize("far", [{"epsilon": 0.5}, {"clients": 1000}, {"planned_rounds": 40, "epsilon": 3.0}])
def test_what_is_far_away_is_no_evidence(far: dict[str, Any]) -> None:
    options = {name: value for name, value in far.items() if name == "clients"}
    found = near(HERE, page(*lines_of(**far), **options))
    assert [one.difference for one in found.gains] == [None]
    assert found.found == ()


def test_another_method_is_no_evidence() -> None:
    found = near(HERE, page(*lines_of(method="fedper")))
    assert [one.difference for one in found.gains] == [None]
    assert HERE.distance(page(*lines_of(method="fedper"))[0].place()) == (math.inf, "method")


def test_the_nearest_page_that_has_a_controller_tells_of_it() -> None:
    other = [line("fixed:1x", seed, 0.9, epsilon=8.5) for seed in range(8)]
    other += [line("aqc", seed, 0.4, epsilon=8.5) for seed in range(8)]
    other += [line(BASELINE, seed, 0.5, epsilon=8.5) for seed in range(8)]
    farther = [replace(one, page="farther") for one in page(*other)]
    gains = near(HERE, [*farther, *page(*lines_of())]).gains
    assert [(one.controller, one.page) for one in gains] == [("fixed:1x", "by hand"), ("aqc", "farther")]
    assert gains[0].difference is not None
    assert gains[0].difference.mean == pytest.approx(0.03)


def test_what_comes_with_the_package_is_at_hand_though_it_was_trained() -> None:
    rows = [line("pretrained:clip", seed, 0.7, training_rounds=4000) for seed in range(8)]
    [_, gain] = sorted(near(HERE, page(*lines_of(), *rows)).gains, key=lambda one: one.controller)
    assert (gain.controller, gain.free) == ("pretrained:clip", True)


def test_an_instance_whose_settings_are_unknown_is_refused() -> None:
    with pytest.raises(InputError, match="instance 'epsilon 9'"):
        page(*lines_of(instance="epsilon 9"), vary=["epsilon=2,8"])


def test_a_distance_is_one_at_the_end_of_what_is_near() -> None:
    place = Place(1.0, 1.0, 4.0, 100)
    assert place.distance(Place(1.0, 1.0, 12.0, 100)) == (pytest.approx(1), "epsilon")
    assert place.distance(Place(1.0, 1 / 1.5, 4.0, 150)) == (pytest.approx(1), "length of updates")


def test_the_instances_of_a_page_have_the_settings_that_their_names_say() -> None:
    found = [one for one in read_pages() if one.page == "mixed"]
    assert len(found) == 24
    for one in found:
        assert f"learning rate {one.config.learning_rate:g}, partition {one.config.partition}" in one.instance
        assert f"epsilon {one.config.epsilon:g}," in one.instance


def test_instances_that_were_varied_have_their_settings() -> None:
    rows = [*lines_of(instance="epsilon 2", epsilon=2.0), *lines_of(instance="epsilon 8", epsilon=8.0)]
    found = page(*rows, vary=["epsilon=2,8"])
    assert [one.config.epsilon for one in found] == [2.0, 8.0]


def test_every_committed_page_is_evidence() -> None:
    names = {path.stem for path in FOLDER.glob("*.csv")}
    assert names >= {"mixed", "scale"}
    assert {one.page for one in read_pages()} == names
    for path in FOLDER.glob("*.csv"):
        with path.open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["role"] == "controller"]
        read = [one for one in read_pages() if one.page == path.stem]
        assert {one.instance for one in read} == {row["instance"] for row in rows}


def test_the_pages_are_installed_with_the_package() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert PAGES in find_namespace_packages(str(ROOT), include=tools["packages"]["find"]["include"])
    data = tools["package-data"]
    patterns = [*data["*"], *data[PAGES]]
    for path in FOLDER.glob("*.[cy]*"):
        assert any(fnmatch(path.name, pattern) for pattern in patterns)
