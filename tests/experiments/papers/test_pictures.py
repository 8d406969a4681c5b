"""Pictures of a table: curves with bands, bars, printed numbers as marks; which data and guarantee they are of."""

import dataclasses

import matplotlib.image
import numpy as np
import pytest

from experiments.papers.cells import make_cells
from experiments.papers.pictures import block_figure, draw
from experiments.papers.results import gather
from experiments.papers.sheets import write_markdown
from experiments.papers.tables import find_table
from tests.experiments.basis import require_basis
from tests.experiments.papers.records import write_record
from tests.experiments.papers.test_measures import ROUNDS, record

CHANGE = {"dataset": "digits", "model": "mlp", "rounds": 3}


def results_of(name, folder, block, seeds=2, guarantees=("sound", "as-published"), **asked):
    table = find_table(name, **asked)
    table = dataclasses.replace(table, blocks={block: table.blocks[block]})
    cells = make_cells(table, guarantees, seeds, CHANGE)
    for cell in cells:
        gain = 0.1 if cell.seed == cells[-1].seed and seeds > 1 else 0.0
        rounds = [{**one, "personal_accuracy": one["personal_accuracy"] + gain} for one in ROUNDS]
        write_record(cell, folder, record(rounds))
    return table, gather(table, cells, folder)


def words(figure):
    texts = [figure.get_suptitle(), *(ax.get_title(loc="left") for ax in figure.axes)]
    (legend,) = figure.legends
    return "\n".join([*texts, legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())])


def test_curves_are_means_over_seeds_with_a_band_from_lowest_to_highest(tmp_path):
    table, (result,) = results_of("fedglp-adp-figure2", tmp_path, "svhn-accuracy")
    figure = block_figure(table, result)
    sound, published = figure.axes
    line, mark = sound.lines[:2]
    np.testing.assert_allclose(line.get_xydata(), [[1, 25], [2, 65], [3, 55]])
    assert mark.get_xydata().tolist() == [[3, 56.41]]  # DP-FedAvg as printed
    low, high = sound.collections[0].get_datalim(sound.transData).get_points()[:, 1]
    assert (low, high) == pytest.approx((20, 70))
    assert len(sound.collections) == len(published.collections) == len(result.block.rows)
    assert sound.get_xlabel() == "communication round"
    assert sound.get_ylabel().replace("\n", " ") == "accuracy (%), mean over clients"
    said = require_basis(words(figure))
    for text in ("SUBSTITUTE for svhn: on digits", "sound: ε = 1 by the ledger", "as-published: ε = 1 claimed"):
        assert text in said
    for row in (*result.block.rows, "printed in the paper", "bands reach from the lowest"):
        assert row in said


def test_one_seed_has_no_band_and_the_picture_says_so(tmp_path):
    table, (result,) = results_of("fedglp-adp-figure2", tmp_path, "svhn-loss", seeds=1)
    figure = block_figure(table, result)
    assert not figure.axes[0].collections
    assert "One seed." in words(figure)
    assert "printed in the paper" not in words(figure)


def test_bars_stand_beside_the_printed_numbers_and_runs_without_noise_under_each_guarantee(tmp_path):
    table, (result,) = results_of("acdp-pfsd-table3", tmp_path, "emnist-personalized")
    figure = block_figure(table, result)
    columns, rows = len(result.block.columns), len(result.block.rows)
    for ax in figure.axes:
        bars = [patch.get_height() for patch in ax.patches]
        assert len(bars) == columns * rows
        assert bars == pytest.approx([55] * len(bars))
        marks = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "D"]
        assert sorted(marks) == sorted(number for row in result.block.printed.values() for number in row)
        assert [label.get_text() for label in ax.get_xticklabels()] == list(result.block.columns)


def test_a_target_that_was_not_reached_is_a_hatched_bar_with_an_arrow(tmp_path):
    asked = {"measure": "epsilon_to_accuracy", "targets": (60.0, 90.0)}
    table, (result,) = results_of("fedglp-adp-table3", tmp_path, "svhn", 1, ("sound",), **asked)
    (ax,) = block_figure(table, result).axes
    hatched = [patch for patch in ax.patches if patch.get_hatch()]
    assert len(hatched) == len(ax.patches) / 2
    assert {patch.get_height() for patch in hatched} == {1.0}
    assert sum(line.get_marker() == "^" for line in ax.lines) == len(hatched)
    assert "not reached: above" in words(block_figure(table, result))


def test_pictures_are_written_as_png_and_svg_and_shown_in_the_page(tmp_path):
    table, results = results_of("fedglp-adp-figure3", tmp_path, "cifar10", 1)
    pictures = draw(table, results, tmp_path)
    assert pictures == {"cifar10": "figures/cifar10.png"}
    image = matplotlib.image.imread(tmp_path / "figures" / "cifar10.png")
    assert image.shape[0] > 400
    assert image.std() > 0.05
    svg = (tmp_path / "figures" / "cifar10.svg").read_text()
    draw(table, results, tmp_path)
    assert (tmp_path / "figures" / "cifar10.svg").read_text() == svg
    write_markdown(table, results, tmp_path, pictures)
    assert "![cifar10](figures/cifar10.png)" in (tmp_path / "result.md").read_text()
