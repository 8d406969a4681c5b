"""Figures show the numbers of the comparison, whatever these are."""

from __future__ import annotations

import base64
import itertools
import math
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from experiments.records.comparison import Comparison, ControllerResult, Instance
from experiments.reports import drawing, figures, score_figures
from tests.experiments.records.test_comparison import make_comparison, make_controller, make_episode

ALL = [
    figures.control_figure,
    figures.learning_figure,
    figures.budget_figure,
    score_figures.accuracy_figure,
    score_figures.profile_figure,
]


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def two() -> Comparison:
    return make_comparison(
        make_controller("fixed:0.5", [0.5, 0.6, 0.7], label="fixed clip"),
        make_controller("ppo:x", [0.6, 0.7, 0.8], label="PPO", training_rounds=9),
    )


def drawn(figure: Figure) -> Figure:
    figure.canvas.draw()
    return figure


def image_size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.parametrize("draw", ALL)
def test_every_figure_renders_as_svg_and_png(draw: Callable[[Comparison], Figure]) -> None:
    figure = draw(two())
    assert isinstance(figure, Figure)
    svg = drawing.figure_svg(figure)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert base64.b64decode(drawing.svg_base64(figure)).decode().startswith("<?xml")
    width, height = image_size(drawing.figure_png(figure, dpi=50))
    assert width == 320
    assert height > 100


def test_the_same_data_gives_the_same_svg() -> None:
    assert drawing.figure_svg(figures.budget_figure(two())) == drawing.figure_svg(figures.budget_figure(two()))


def test_a_controller_keeps_its_colour_everywhere() -> None:
    comparison = two()
    wanted = {to_rgb(style.colour) for style in drawing.line_styles(comparison).values()}
    for draw in ALL:
        used = {to_rgb(line.get_color()) for line in draw(comparison).axes[0].lines}
        assert wanted <= used


def test_the_overview_shows_clip_norms_and_the_accuracy_that_decides() -> None:
    figure = figures.overview_figure(two())
    left, right = figure.axes[:2]
    assert left.get_yscale() == "log"
    assert "Accuracy of the global model" in right.get_title(loc="left") + right.get_title()
    assert image_size(drawing.figure_png(figure, dpi=50))[0] == 512


def test_where_part_of_the_model_stays_on_the_clients_only_personal_models_are_drawn() -> None:
    comparison = replace(two(), judged_by="personal_accuracy")
    [final], [learning] = score_figures.accuracy_figure(comparison).axes, figures.learning_figure(comparison).axes
    assert "Personal models" in final.get_title(loc="left") + final.get_title()
    assert "personal models" in learning.get_title(loc="left") + learning.get_title()


def test_styles_differ_for_many_controllers() -> None:
    many = make_comparison(*(make_controller(f"c{i}", [0.5]) for i in range(28)))
    styles = drawing.line_styles(many)
    assert len({(style.colour, style.dash) for style in styles.values()}) == 28
    figures.learning_figure(many).canvas.draw()


# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as seen without the red or the green receptor.
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]


@pytest.mark.parametrize("sight", [np.eye(3), PROTANOPIA, DEUTERANOPIA])
def test_colours_are_told_apart_by_colour_blind_people(sight: list[list[float]]) -> None:
    many = make_comparison(*(make_controller(f"c{i}", [0.5]) for i in range(7)))
    colours = np.array([to_rgb(style.colour) for style in drawing.line_styles(many).values()])
    seen = np.clip((np.asarray(sight) @ (colours**2.2).T).T, 0, 1) ** (1 / 2.2)
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations([*seen, np.ones(3)], 2)]
    assert min(distances) > 0.14


def test_lines_are_medians_in_per_cent() -> None:
    line = figures.learning_figure(two()).axes[0].lines[0]
    np.testing.assert_allclose(np.asarray(line.get_xydata()), [[2, 30], [4, 60]])


def test_decisions_end_with_the_episode_but_the_model_and_the_budget_stay() -> None:
    short = make_episode(
        1,
        0.4,
        rounds=2,
        trajectory={
            "clip_norm": [3.0, 2.0],
            "epsilon_spent": [1.0, 2.0],
            "evaluated_rounds": [2.0],
            "global_accuracy": [0.4],
        },
    )
    controller = make_controller("x", [], episodes=(make_episode(0, 0.8), short))
    rounds, clip = drawing.aligned(controller, "clip_norm")
    assert rounds.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(clip[1], [3, 2, math.nan, math.nan])
    assert drawing.aligned(controller, "epsilon_spent")[1][1].tolist() == [1, 2, 2, 2]
    rounds, accuracy = drawing.aligned(controller, "global_accuracy")
    assert rounds.tolist() == [2, 4]
    assert accuracy[1].tolist() == [0.4, 0.4]
    for draw in ALL:
        draw(make_comparison(controller)).canvas.draw()


def test_server_learning_rate_and_noise_have_a_panel_only_where_they_vary() -> None:
    def panels(**series: list[float]) -> list[str]:
        episode = make_episode(0, 0.5, trajectory={"clip_norm": [1.0, 0.5], **series}, rounds=2)
        controller = make_controller("x", [], episodes=(episode,))
        return [ax.get_title(loc="left") for ax in figures.control_figure(make_comparison(controller)).axes]

    clip = "Clip norm chosen in each round"
    assert panels() == [clip]
    assert panels(server_learning_rate=[1.0, 1.0], noise_multiplier=[4.0, 4.0]) == [clip]
    assert panels(server_learning_rate=[1.0, 0.5]) == [clip, "Server learning rate in each round"]
    assert panels(noise_multiplier=[4.0, 5.0]) == [clip, "Noise multiplier in each round"]


def test_clip_norms_are_on_a_log_axis_with_labels_also_in_a_narrow_range() -> None:
    figure = figures.control_figure(two())
    figure.canvas.draw()
    ax = figure.axes[0]
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    shown = [tick.get_text() for tick in ax.get_yticklabels() if low <= float(tick.get_text() or 0) <= high]
    assert len(shown) >= 2


@pytest.mark.parametrize("draw", ALL)
def test_missing_and_broken_trajectories_are_survived(draw: Callable[[Comparison], Figure]) -> None:
    nothing = make_controller("nothing", [], episodes=(make_episode(0, 0.1, trajectory={}),))
    diverged = make_episode(0, 0.1, trajectory={"clip_norm": [math.inf, 1.0], "global_accuracy": [math.nan, 0.1]})
    broken = make_controller("broken", [], episodes=(diverged,))
    draw(make_comparison(nothing)).canvas.draw()
    draw(make_comparison(nothing, broken, epsilon=math.inf)).canvas.draw()


def test_odd_labels_are_drawn_as_they_are() -> None:
    odd = make_controller("odd", [0.5, 0.5], label="a $x_$ <b> & " + "long " * 20)
    for draw in ALL:
        drawing.figure_svg(draw(make_comparison(odd)))


def test_one_seed_and_equal_seeds_are_drawn() -> None:
    for values in ([0.5], [0.5] * 4, [0.0, 1.0]):
        comparison = make_comparison(make_controller("x", values))
        figures.learning_figure(comparison).canvas.draw()
        score_figures.accuracy_figure(comparison).canvas.draw()


def test_settings_of_the_caller_and_pyplot_stay_untouched() -> None:
    before = dict(mpl.rcParams)
    drawing.figure_svg(figures.control_figure(two()))
    assert dict(mpl.rcParams) == before
    code = "import sys, experiments.reports.figures; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def on_two_budgets() -> Comparison:
    instances = (Instance("hard", 4.0, {}), Instance("easy", 8.0, {}))
    episodes = tuple(
        make_episode(
            seed,
            instance=one.name,
            trajectory={"clip_norm": [one.epsilon] * 4, "epsilon_spent": [one.epsilon * k / 4 for k in range(1, 5)]},
        )
        for seed, one in enumerate(instances)
    )
    return make_comparison(make_controller("x", [], episodes=episodes), instances=instances)


def test_budgets_and_decisions_of_different_instances_have_panels_of_their_own() -> None:
    budgets = figures.budget_figure(on_two_budgets())
    assert [ax.lines[0].get_ydata()[-1] for ax in budgets.axes] == [4.0, 8.0]  # type: ignore[index]
    assert [text.get_text() for ax in budgets.axes for text in ax.texts] == ["target ε = 4", "target ε = 8"]
    decisions = figures.control_figure(on_two_budgets())
    assert [ax.get_title(loc="left").rpartition(": ")[2] for ax in decisions.axes] == ["hard", "easy"]
    assert [ax.lines[0].get_ydata()[0] for ax in decisions.axes] == [4.0, 8.0]  # type: ignore[index]


def on_many_instances(count: int) -> Comparison:
    """Two controllers on so many instances, each with a budget of its own."""
    names = [f"{i}: epsilon {i + 1}, learning rate 0.31, partition shards(2), update scale {i}.5" for i in range(count)]
    instances = tuple(Instance(name, i + 1.0, {"epsilon": i + 1.0}) for i, name in enumerate(names))

    def played(label: str, shift: float) -> ControllerResult:
        episodes = tuple(
            make_episode(
                10 * place + seed,
                0.3 + 0.02 * place + 0.01 * seed + shift,
                instance=one.name,
                epsilon_spent=one.epsilon,
                epsilon_pld=one.epsilon,
                trajectory={"clip_norm": [1.0, 0.5], "epsilon_spent": [one.epsilon / 2, one.epsilon]},
            )
            for place, one in enumerate(instances)
            for seed in range(3)
        )
        return make_controller(label, [], episodes=episodes)

    return make_comparison(played("one", 0.0), played("two", 0.1), instances=instances)


def test_every_instance_has_a_line_with_each_controllers_mean_and_interval() -> None:
    comparison = on_many_instances(12)
    ax = drawn(score_figures.instance_figure(comparison)).axes[0]
    names = [text.get_text().replace("\n", " ").replace("\N{NO-BREAK SPACE}", " ") for text in ax.get_yticklabels()]
    assert names == [one.name for one in comparison.instances]
    markers = [line for line in ax.lines if line.get_marker() not in ("None", "") and len(line.get_xdata()) == 1]  # type: ignore[arg-type]
    assert len(markers) == 2 * 12
    means = [100 * (0.3 + 0.02 * place + 0.01 + shift) for shift in (0.0, 0.1) for place in range(12)]
    assert [line.get_xdata()[0] for line in markers] == pytest.approx(means)  # type: ignore[index]
    for line, place in zip(markers, [*range(12)] * 2, strict=True):
        assert abs(line.get_ydata()[0] - place) < 0.5  # type: ignore[index, operator]


def test_many_budgets_are_drawn_as_shares_of_their_targets() -> None:
    [ax] = drawn(figures.budget_figure(on_many_instances(12))).axes
    for line in ax.lines[:2]:
        np.testing.assert_allclose(line.get_ydata(), [50.0, 100.0])  # type: ignore[arg-type]
    assert "% of the target" in ax.get_ylabel()


def test_bands_do_not_mix_many_instances_with_seeds() -> None:
    few, many = (drawn(figures.learning_figure(on_many_instances(count))) for count in (2, 12))
    assert [ax.get_title(loc="left").partition(": ")[0] for ax in few.axes] == ["Accuracy of the global model"] * 2
    assert len(many.axes) == 2
    assert not any(ax.collections for ax in many.axes)


@pytest.mark.parametrize("count", [1, 2, 12])
def test_every_figure_of_a_report_names_its_axes_and_has_a_caption(count: int) -> None:
    for picture in figures.captioned_figures(on_many_instances(count)):
        axes = picture.draw(on_many_instances(count)).axes
        assert picture.caption.endswith(".")
        assert all(ax.get_xlabel() for ax in axes)
        names = [ax.get_ylabel() or "".join(text.get_text() for text in ax.get_yticklabels()) for ax in axes]
        assert names[0]  # a panel beside it may share the axis
        assert all(names) or picture.draw is score_figures.accuracy_figure


def test_no_label_leaves_the_figure() -> None:
    """Twelve instances with long names, and controllers with long labels."""
    many = on_many_instances(12)
    long = tuple(replace(one, label=f"{one.label}, the adaptive quantile 0.5 (rate 0.2)") for one in many.controllers)
    for picture in figures.captioned_figures(replace(many, controllers=long)):
        figure = drawn(picture.draw(replace(many, controllers=long)))
        ink, page = figure.get_tightbbox(), figure.bbox_inches
        assert page.x0 - 0.01 <= ink.x0
        assert ink.x1 <= page.x1 + 0.01
        assert page.y0 - 0.01 <= ink.y0
        assert ink.y1 <= page.y1 + 0.01


def test_profiles_fall_from_all_runs_to_none() -> None:
    line = score_figures.profile_figure(two()).axes[0].lines[0]
    x, y = np.asarray(line.get_xydata()).T
    assert (y[0], y[-1]) == (100.0, 0.0)
    assert (np.diff(y) <= 0).all()
    assert y[np.searchsorted(x, 55.0)] == pytest.approx(200 / 3)  # two of 50, 60 and 70 % are above 55 %
