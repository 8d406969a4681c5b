"""Every table can be read, stands for runs that can be made, and prints what its paper prints."""

import math
import re
import warnings

import pytest

from experiments.contenders.preparing import parse_contender
from experiments.papers.cells import fitting_model, make_cells
from experiments.papers.federations import choose_dataset, make_federation
from experiments.papers.measures import MEASURES
from experiments.papers.tables import find_table, merge, table_names
from fl_core.base.errors import InputError
from fl_core.data.datasets import DATASETS
from fl_core.models.build import build_model
from fl_core.privacy.ledger import Ledger

TABLES = table_names()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
def test_every_cell_of_every_table_builds(name, guarantee):
    table = find_table(name)
    cells = make_cells(table, (guarantee,), 1, {})
    assert len(cells) == sum(len(block.rows) * len(block.columns) for block in table.blocks.values())
    for cell in cells:
        federation = cell.federation
        assert federation.guarantee == (guarantee if federation.recipe().private else "sound")
        assert math.isfinite(federation.epsilon) == federation.recipe().private
        assert cell.clip_norm > 0
        parse_contender(cell.controller)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_says_what_it_is_and_what_the_paper_leaves_open(name):
    table = find_table(name)
    assert table.open
    assert re.fullmatch(r"(Table|Fig\.|Eq\.) ([0-9]+|[IV]+)", table.where)
    assert table.name.startswith(table.paper.lower())
    for block in table.blocks.values():
        assert block.dataset in DATASETS
        assert block.measure in MEASURES
        for numbers in block.printed.values():
            assert all(0 <= number <= 100 for number in numbers if number is not None)


def test_all_tables_are_there():
    expected = {f"dp-pfeddsu-table{number}" for number in range(2, 8)}
    expected |= {f"feddpa-table{number}" for number in range(1, 7)}
    expected |= {f"fedglp-adp-table{number}" for number in range(1, 7)}
    expected |= {"adp-pfl-table2", *(f"adp-pfl-figure{number}" for number in range(3, 7)), "acdp-pfsd-table3"}
    expected |= {"feddpa-figure1", "fedglp-adp-figure2", "acdp-pfsd-figure3", "dp-pfeddsu-figure2"}
    expected |= {"feddpa-table1-program", "feddpa-table2-program", "acdp-pfsd-figure4", "fedglp-adp-figure3"}
    assert expected <= set(TABLES)


@pytest.mark.parametrize(
    ("name", "measures"),
    [
        ("feddpa-figure1", ["personal_accuracy", "train_loss"]),
        ("fedglp-adp-figure2", ["personal_accuracy", "train_loss"]),
        ("acdp-pfsd-figure3", ["personal_accuracy", "global_accuracy"] * 2),
        ("dp-pfeddsu-figure2", ["train_loss"]),
    ],
)
def test_figures_over_the_rounds_are_measured_after_every_round(name, measures):
    table = find_table(name)
    assert [block.measure for block in table.blocks.values()] == measures
    assert all(MEASURES[measure].after for measure in measures)
    cells = make_cells(table, ("sound",), 1, {"dataset": "digits", "model": "mlp"})
    assert all(cell.setting.spec.evaluate_every_round for cell in cells)
    assert len({cell.key for cell in cells}) * 2 == len(cells) or len(table.blocks) == 1  # two panels of the same runs


def test_the_budget_on_the_way_to_an_accuracy_is_a_column_for_each_accuracy():
    block = find_table("adp-pfl-figure4").blocks["cifar10"]
    assert list(block.targets.values()) == [45, 47.678, 50.25]
    keys = {
        cell.key for cell in make_cells(find_table("adp-pfl-figure4"), ("sound",), 1, {}) if cell.block == "cifar10"
    }
    assert len(keys) == len(block.rows)  # accuracies of one run


@pytest.mark.parametrize(
    ("name", "block", "row", "column", "number"),
    [
        ("fedglp-adp-table1", "fashion-mnist", "DP-FedAvg", "epsilon=4", 77.85),
        ("fedglp-adp-table1", "fashion-mnist", "FedGLP-ADP", "epsilon=16", 82.09),
        ("fedglp-adp-table1", "svhn", "FedADDP", "epsilon=6", 64.02),
        ("fedglp-adp-table2", "cifar10", "FedDPA", "alpha=100", 42.80),
        ("fedglp-adp-table3", "svhn", "Dynamic", "epsilon=2", 62.60),
        ("fedglp-adp-table4", "svhn", "FedGLP-ADP", "gamma=0.8", 69.60),
        ("fedglp-adp-table5", "svhn", "GLP", "epsilon=8", 51.67),
        ("fedglp-adp-table6", "cifar10", "ResNet-18", "FedADDP", 93.98),
        ("fedglp-adp-figure3", "cifar10", "FedGLP-ADP", "accuracy", 43.54),
        ("feddpa-table1", "femnist", "PPSGD", "epsilon=2", 68.20),
        ("feddpa-table1", "svhn", "BLUR+LUS", "epsilon=6", 56.90),
        ("feddpa-table2", "cifar10", "DP-FedSAM", "alpha=10", 56.15),
        ("feddpa-table1-program", "svhn", "FedDPA", "epsilon=4", 62.63),
        ("feddpa-table2-program", "cifar10", "FedDPA", "alpha=1", 49.75),
        ("feddpa-table3", "femnist", "DFP", "epsilon=8", 74.38),
        ("feddpa-table4", "accuracy", "FedDPA", "tau=0.9", 47.74),
        ("feddpa-table4", "proportion", "FedDPA", "tau=0.3", 1.45),
        ("feddpa-table5", "svhn", "FedDPA", "lambda1=0.05", 62.64),
        ("feddpa-table6", "svhn", "FedDPA", "lambda2=0.5", 45.66),
        ("dp-pfeddsu-table2", "emnist", "CENTAUR", "s=10", 68.97),
        ("dp-pfeddsu-table2", "cifar100", "PPSGD", "s=10", 28.63),
        ("dp-pfeddsu-table2", "cifar10", "DP-pFedDSU", "s=2", 86.29),
        ("dp-pfeddsu-table3", "cifar10", "PMTL-FT", "epsilon=2", 52.94),
        ("dp-pfeddsu-table4", "emnist-s10", "RT", "accuracy", 71.10),
        ("dp-pfeddsu-table5", "cifar10", "RT", "sparsity=0.3", 41.95),
        ("dp-pfeddsu-table6", "cifar10", "RT", "layers=7", 40.74),
        ("dp-pfeddsu-table7", "cifar10", "DP-pFedDSU", "lambda=0.4", 42.69),
        ("adp-pfl-table2", "fashion-mnist", "Round-level epsilon", "epsilon=6", 93.534),
        ("adp-pfl-table2", "svhn", "Fixed epsilon", "epsilon=9", 91.291),
        ("adp-pfl-table2", "mnist", "Adaptive epsilon", "epsilon=3", None),
        ("acdp-pfsd-table3", "emnist-global", "AQC", "sigma=1.3", 35.96),
        ("acdp-pfsd-table3", "cifar10-personalized", "ACDP-pFSD", "sigma=1.5", 77.77),
        ("acdp-pfsd-table3", "svhn-global", "DP-pFSD", "sigma=2.1", 20.07),
    ],
)
def test_printed_numbers(name, block, row, column, number):
    assert find_table(name).blocks[block].number(row, column) == number


@pytest.mark.parametrize(
    ("name", "column", "multiplier"),
    [
        ("fedglp-adp-table1", "epsilon=2", 3.97),
        ("fedglp-adp-table1", "epsilon=16", 1.06),
        ("fedglp-adp-table2", "IID", 0.3),
        ("feddpa-table2", "alpha=1", 0.1),
        ("feddpa-table1-program", "epsilon=2", 0.751),
        ("feddpa-table2-program", "IID", 0.1),
        ("acdp-pfsd-table3", "sigma=0.8", 0.8),
        ("acdp-pfsd-table3", "sigma=1.3", 1.3),
        ("acdp-pfsd-table3", "sigma=2.1", 2.1),
    ],
)
def test_claims_reproduce_the_noise_multipliers_of_the_papers(name, column, multiplier):
    cells = make_cells(find_table(name), ("as-published",), 1, {})
    config = next(cell.federation for cell in cells if cell.column == column and cell.federation.recipe().private)
    claim = Ledger(config.epsilon, config.delta, config.accounting_rate, config.rounds, claim=True)
    assert claim.uniform_noise_multiplier == pytest.approx(multiplier, rel=4e-3)


def test_methods_of_the_tables_on_trained_models_are_all_tested_on_trained_models():
    for name in ("fedglp-adp-table1", "fedglp-adp-table2", "feddpa-table1", "feddpa-table2"):
        for cell in make_cells(find_table(name), ("sound",), 1, {}):
            personalization = cell.federation.recipe().personalization
            assert personalization.tests == "trained" or personalization.shares_nothing


def test_layers_replace_each_other_and_edits_add_up():
    merged = merge({"set": "a=1", "rounds": 3}, {"set": "b=2", "rounds": 4}, {"set": ""})
    assert merged == {"set": "a=1,b=2", "rounds": 4}


def test_a_run_without_noise_is_the_same_under_every_guarantee_and_budget():
    one = make_federation({"method": "local-only", "epsilon": 2}, "as-published")
    assert one == make_federation({"method": "local-only", "epsilon": 16}, "sound")
    assert one.epsilon == math.inf


def test_equal_runs_share_a_record_and_different_ones_do_not():
    table = find_table("acdp-pfsd-table3")
    cells = make_cells(table, ("sound", "as-published"), 2, {"dataset": "digits", "model": "mlp"})
    keys = {}
    for cell in cells:
        assert keys.setdefault(cell.key, cell.asked) == cell.asked
    blocks = ("emnist-personalized", "emnist-global")
    one, other = ([cell.key for cell in cells if cell.block == block] for block in blocks)
    assert one == other


def test_a_missing_dataset_is_replaced_by_one_that_is_at_hand(monkeypatch):
    here = {"digits", "mnist5k"}
    monkeypatch.setattr("experiments.papers.federations.dataset_available", lambda name: name in here)
    assert choose_dataset("cifar10") == "mnist5k"
    assert choose_dataset("digits") == "digits"
    assert choose_dataset("cifar10", "cifar100") == "cifar100"
    assert fitting_model("lenet", "mnist5k") == "lenet"
    assert fitting_model("lenet", "digits") == "cnn2"
    cells = make_cells(find_table("feddpa-table1"), ("sound",), 1, {})
    assert {(cell.block, cell.substitute_for) for cell in cells} == {("femnist", "femnist"), ("svhn", "svhn")}
    assert {cell.federation.partition for cell in cells if cell.block == "femnist"} == {"dirichlet(1)"}


@pytest.mark.parametrize("name", ["feddpa-table1", "feddpa-table2"])
def test_the_programs_tables_print_what_the_papers_print(name):
    text, program = find_table(name), find_table(f"{name}-program")
    for label, block in program.blocks.items():
        assert {row: list(numbers) for row, numbers in block.printed.items()} == {
            row: list(numbers) for row, numbers in text.blocks[label].printed.items()
        }


def test_the_programs_table_has_its_networks_and_images_and_its_steps(monkeypatch):
    monkeypatch.setattr("experiments.papers.federations.dataset_available", lambda name: True)
    cells = [*make_cells(find_table("feddpa-table1-program"), ("as-published",), 1, {})]
    cells += make_cells(find_table("feddpa-table2-program"), ("as-published",), 1, {})
    images = {(c.block, c.federation.model, c.federation.augmentation, c.federation.input_normalization) for c in cells}
    assert images == {
        ("femnist", "feddpa-femnist", "rotate(20)", "published"),
        ("svhn", "feddpa-svhn", "crop(4)", "published"),
        ("cifar10", "feddpa-cifar10", "flip,crop(4)", "published"),
    }
    schedules = {c.federation.recipe().objective.schedule for c in cells if c.row == "FedDPA"}
    assert schedules == {"personal-pass-then-shared"}
    assert {c.federation.recipe().aggregation.weights for c in cells if c.row == "FedDPA"} == {"data"}


def test_fedper_keeps_what_the_paper_names():
    kept = {}
    for cell in make_cells(find_table("acdp-pfsd-figure4"), ("sound",), 1, {}):
        if cell.row == "FedPer":
            model = build_model(cell.federation.model, (3, 32, 32), 10)
            local = cell.federation.recipe().personalization.local
            kept[cell.block.partition("-")[0]] = [layer.name.partition(".")[0] for layer in model.spans(local)]
    assert kept["emnist"] == ["fc1", "fc2"]
    assert set(kept["cifar10"]) == {"stage4_block2", "fc"}


def test_unknown_tables_get_near_names():
    with pytest.raises(InputError, match="did you mean fedglp-adp-table1"):
        find_table("fedglp-adp-tabel1")


def test_building_the_cells_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_cells(find_table("fedglp-adp-table1"), ("sound", "as-published"), 1, {})


def test_a_layers_noise_multiplier_replaces_an_epsilon_below_it_and_the_reverse() -> None:
    assert merge({"epsilon": 2}, {"noise_multiplier": 1.3}) == {"noise_multiplier": 1.3}
    assert merge({"noise_multiplier": 1.3}, {"epsilon": 2}) == {"epsilon": 2}
    with pytest.raises(InputError, match="each follows from the other"):
        merge({"epsilon": 2, "noise_multiplier": 1.3})
    as_printed = make_federation(
        {"noise_multiplier": 1.3, "clients": 50, "rounds": 100, "delta": 0.0135}, "as-published"
    )
    sound = make_federation({"noise_multiplier": 1.3, "clients": 50, "rounds": 100, "delta": 0.0135}, "sound")
    assert as_printed.epsilon == pytest.approx(50.08, rel=1e-3)
    assert sound.epsilon == pytest.approx(45.7, rel=1e-3)
    free = make_federation({"method": "fedavg", "noise_multiplier": 1.3}, "as-published")
    assert (free.epsilon, free.noise_multiplier) == (float("inf"), None)
