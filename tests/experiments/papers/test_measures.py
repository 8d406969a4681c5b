"""Measures read off the rounds of a run, open intervals where a target was never reached, and reasons for no number."""

import csv
import dataclasses
import json
import math

import pytest
from scipy.stats import norm

from experiments.cli import main
from experiments.papers.cells import NO_NOISE, make_cells
from experiments.papers.measures import MEASURES, Reading, mean_of
from experiments.papers.results import gather, table_json, write_data
from experiments.papers.sheets import markdown
from experiments.papers.tables import find_table
from fl_core.base.errors import InputError
from tests.experiments.papers.records import write_record

ROUNDS = [
    {"personal_accuracy": 0.2, "train_loss": 2.0, "epsilon_spent": 0.5, "uplink_bytes": 400.0},
    {"personal_accuracy": 0.6, "train_loss": 1.5, "epsilon_spent": 0.8, "uplink_bytes": 400.0},
    {"personal_accuracy": 0.5, "train_loss": 1.0, "epsilon_spent": 1.0, "uplink_bytes": 100.0},
]
TINY = ["--dataset", "digits", "--model", "mlp", "--rounds", "2", "--change", "clients=4", "executor=vectorized"]


def record(history=tuple(ROUNDS), **more):
    privacy = {"spent": 1.0, "certified": 1.0, "updates_only": 1.0, "uploads_view": None, "at_small_delta": None}
    privacy["basis"] = "unit one client, add-remove (one client more or less); against an observer; no amplification"
    results = {"figures": history[-1], "history": list(history), "privacy": {**privacy, "uncovered": []}}
    results |= {"tests": dict.fromkeys(("holdout", "classes", "whole"), 0.5), "diverged": False, "parameters": 100}
    return {**results, "uplink_bytes": 300.0, "seconds": 1.0, "seconds_per_round": 0.1, **more}


def some_cells(table, seeds):
    block = {"emnist-personalized": table.blocks["emnist-personalized"]}
    change = {"dataset": "digits", "model": "mlp"}
    return make_cells(dataclasses.replace(table, blocks=block), ("sound", "as-published"), seeds, change)


def gaussian_delta(epsilon, distance):
    """δ of a Gaussian release whose means lie so many standard deviations apart (Balle and Wang 2018, theorem 8)."""
    near, far = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
    return norm.cdf(near) - math.exp(epsilon) * norm.cdf(far)


@pytest.mark.parametrize(
    ("measure", "target", "value"),
    [
        ("personal_accuracy", math.nan, 50.0),
        ("train_loss", math.nan, 1.0),
        ("uplink_bytes", math.nan, 300.0),
        ("uplink_saving", math.nan, 25.0),
        ("rounds_to_accuracy", 20, 1),
        ("rounds_to_accuracy", 20.5, 2),
        ("rounds_to_accuracy", 60, 2),
        ("epsilon_to_accuracy", 60, 0.8),
        ("epsilon_to_accuracy", 15, 0.5),
    ],
)
def test_a_measure_is_read_off_the_rounds(measure, target, value):
    assert MEASURES[measure].read(record(), target) == Reading(pytest.approx(value))


@pytest.mark.parametrize(("measure", "bound"), [("rounds_to_accuracy", 3), ("epsilon_to_accuracy", 1.0)])
def test_a_target_that_is_never_reached_is_an_open_interval(measure, bound):
    found = MEASURES[measure].read(record(), 60.1)
    assert found == Reading(None, bound, "accuracy 60.1 % was not reached in 3 rounds")


def test_as_published_the_budget_on_the_way_is_the_ledgers_and_not_the_papers_claim():
    rounds = [{**one, "epsilon_of_updates": 3 * one["epsilon_spent"]} for one in ROUNDS]
    assert MEASURES["epsilon_to_accuracy"].read(record(rounds), 60).value == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("measure", "history", "diverged", "reason"),
    [
        ("personal_share", ROUNDS, False, "the method has no personal_share"),
        ("train_loss", [{**ROUNDS[0], "train_loss": "nan"}], True, "the run diverged"),
        ("train_loss", [{}], True, "the run diverged"),
        ("rounds_to_accuracy", [{"epsilon_spent": 1.0}], True, "the run diverged"),
        ("epsilon_to_accuracy", [{**ROUNDS[1], "epsilon_spent": "inf"}], False, "no epsilon holds for a run without"),
    ],
)
def test_a_run_without_the_measure_has_a_reason_and_no_number(measure, history, diverged, reason):
    found = MEASURES[measure].read(record(history, diverged=diverged), 50)
    assert (found.value, found.above) == (None, None)
    assert found.reason.startswith(reason)


def test_a_diverged_run_counts_as_no_accuracy():
    assert MEASURES["personal_accuracy"].read(record([{}], diverged=True), math.nan) == Reading(0.0)


def test_curves_leave_out_rounds_without_a_value():
    rounds = [ROUNDS[0], {**ROUNDS[1], "train_loss": "nan"}, {}, ROUNDS[2]]
    curve = MEASURES["train_loss"].curve(record(rounds))
    assert (curve.rounds, curve.values) == ((1, 4), (2.0, 1.0))
    assert MEASURES["personal_accuracy"].curve(record()).values == pytest.approx((20, 60, 50))


def test_the_mean_of_runs_is_open_where_one_of_them_is():
    late = Reading(None, 10, "accuracy 60 % was not reached in 10 rounds")
    assert mean_of([Reading(2.0), Reading(4.0)]) == Reading(3.0)
    assert mean_of([Reading(2.0), late]) == Reading(None, 6.0, f"{late.reason} (1 of 2 runs)")
    assert mean_of([Reading(2.0), Reading(None, reason="none")]) == Reading(None, None, "none (1 of 2 runs)")
    assert mean_of([late]) == late


def test_results_say_what_is_open_and_why(tmp_path):
    table = find_table("acdp-pfsd-table3", "epsilon_to_accuracy", (40.0, 70.0))
    cells = some_cells(table, 2)
    for cell in cells:
        unbounded = [{**one, "epsilon_spent": "inf"} for one in ROUNDS]
        write_record(cell, tmp_path, record(unbounded if cell.guarantee == NO_NOISE else ROUNDS))
    results = gather(table, cells, tmp_path)
    found = next(one for one in results if one.block.name == "emnist-personalized")
    number = found.find("DP-pFSD", "sigma=1, 70 %", "sound")
    assert (number.mean, number.spread, number.above, number.printed, number.seeds) == (None, None, 1.0, None, 2)
    assert found.find("DP-pFSD", "sigma=1, 40 %", "sound").mean == pytest.approx(0.8)
    write_data(table, results, tmp_path)
    (line,) = [
        line
        for line in csv.DictReader((tmp_path / "result.csv").open())
        if (line["block"], line["row"], line["column"]) == ("emnist-personalized", "DP-pFSD", "sigma=1, 70 %")
        and line["guarantee"] == "sound"
    ]
    assert (line["mean"], line["above"]) == ("", "1.0")
    assert line["reason"] == "accuracy 70 % was not reached in 3 rounds (2 of 2 runs)"
    text = markdown(table, results)
    assert "> 1.00" in text
    assert "accuracy 70 % was not reached in 3 rounds (2 of 2 runs): DP-pFSD (sound, as-published); AQC" in text
    assert "no epsilon holds for a run without noise (2 of 2 runs): NoDP (no noise)" in text
    assert json.dumps(table_json(table, results))


def test_a_run_without_noise_stands_in_a_table_once_and_is_ranked_under_each_guarantee(tmp_path):
    table = find_table("acdp-pfsd-table3")
    cells = some_cells(table, 1)
    assert {cell.guarantee for cell in cells if cell.row == "NoDP"} == {NO_NOISE}
    places = [(cell.block, cell.row, cell.column, cell.guarantee) for cell in cells]
    assert len(places) == len(set(places))
    better = {"NoDP": 0.9, "ACDP-pFSD": 0.8, "DP-pFSD": 0.7, "AQC": 0.6}  # the printed order of sigma=1
    for cell in cells:
        write_record(cell, tmp_path, record(figures={"personal_accuracy": better.get(cell.row, 0.1)}))
    result = gather(table, cells, tmp_path)[0]
    assert result.compared == ("sound", "as-published")
    assert result.correlations("sound")["sigma=1"] == result.correlations("as-published")["sigma=1"] == 1
    assert len(result._rows("sound", "sigma=1")) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--measure", "train_los"], "measure 'train_los' is unknown; did you mean train_loss"),
        (["--target", "50"], "target is 50.0, but the measure of table 'feddpa-table1' has none; add --measure"),
        (["--measure", "rounds_to_accuracy"], "measure is 'rounds_to_accuracy', which needs an accuracy in percent"),
        (
            ["--measure", "rounds_to_accuracy", "--target", "101"],
            "target is 101.0, but it must be a number in (0, 100]",
        ),
        (["--measure", "rounds_to_accuracy", "--target", "nan"], "target is nan"),
    ],
)
def test_a_measure_that_cannot_be_read_is_one_sentence(arguments, sentence, capsys, tmp_path):
    assert main(["paper", "feddpa-table1", "--runs", str(tmp_path), *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_measure_in_a_table_is_refused():
    with pytest.raises(InputError, match="measure 'speed' is unknown"):
        find_table("feddpa-table1", "speed")


def test_the_budget_on_the_way_is_what_the_ledger_certifies_for_a_plan_that_ends_there(tmp_path, monkeypatch):
    """Against the exact δ of one Gaussian release, the only round that the accuracy took."""
    monkeypatch.chdir(tmp_path)
    command = ["paper", "feddpa-table1", *TINY, "--methods", "DP-FedAvg", "--cells", "epsilon=2", "--folder", "here"]
    command += ["--guarantees", "sound", "--blocks", "svhn", "--measure", "epsilon_to_accuracy"]
    assert main([*command, "--target", "0.001", "100"]) == 0
    rows = {line["column"]: line for line in csv.DictReader((tmp_path / "here" / "result.csv").open())}
    reached, missed = rows["epsilon=2, 0.001 %"], rows["epsilon=2, 100 %"]
    (path,) = (tmp_path / "here" / "cells").iterdir()
    distance = 1 / json.loads(path.read_text())["history"][0]["noise_multiplier"]
    assert gaussian_delta(float(reached["mean"]), distance) == pytest.approx(0.1, rel=1e-6)
    assert missed["mean"] == ""
    assert float(missed["above"]) == pytest.approx(55.09, rel=1e-4)
    then = path.stat().st_mtime_ns
    assert main([*command[:-1], "rounds_to_accuracy", "--target", "0.001", "--curves"]) == 0
    assert path.stat().st_mtime_ns == then  # another measure of the same run is read off its record
    (line,) = csv.DictReader((tmp_path / "here" / "result.csv").open())
    assert (line["mean"], line["reason"]) == ("1.0", "")
