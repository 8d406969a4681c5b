"""What a run shows beside what epsilon covers is listed, and left out where that is asked for."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments.cli import main
from experiments.records.ledger_file import read_record
from experiments.records.shown import Shown, exact_metrics, is_exact, not_covered
from experiments.records.tensorboard import TAGS
from fl_core.base.errors import InputError
from fl_core.run.plan import METRICS

SMALL = ["run", "--clients", "8", "--rounds", "3", "--local-steps", "1", "--executor", "vectorized"]
SMALL += ["--evaluation-samples", "20", "--sampling-rate", "0.5", "--telemetry-share", "0.1"]
NO_KNOBS = ["--telemetry-share", "0", "--controller", "none"]
FACTS: dict[str, Any] = {"guarantee": "sound", "exchanges": True, "private": True, "uncovered": ()}
FACTS |= {"method": "dp-fedavg", "controller": "fixed"}
EXACT = {name for name, figure in METRICS.items() if figure.signal_class == "raw"}


def run(root: Path, *options: str) -> Path:
    assert main([*SMALL, *options, "--runs", str(root)]) == 0
    (folder,) = root.iterdir()
    return folder


def written(folder: Path) -> dict[str, set[str]]:
    """Names of the metrics in each file of a run."""
    with (folder / "rounds.csv").open() as file:
        columns = set(csv.DictReader(file).fieldnames or ())
    events = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    metrics = {tag: name for name, tag in TAGS.items()}
    final = {name.removeprefix("final/").replace(" ", "_") for name in events if name.startswith("final/")}
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "rounds.csv": columns - {"round"},
        "events": {metrics[tag] for tag in events if tag in metrics} | (final & set(METRICS)),
        "summary.json": set(summary) & set(METRICS),
    }


def test_the_list_is_what_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    found = written(folder)
    shown = set(read_record(folder).facts.shown)
    assert {"personal_accuracy", "participants", "train_loss", "clipped_share", "update_norm"} <= shown
    assert shown <= EXACT
    assert shown == set().union(*found.values()) & EXACT
    assert set(json.loads((folder / "summary.json").read_text())["privacy"]["shown"]) == shown
    assert main(["ledger", str(folder)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for text in (printed, told):
        assert "shown, not covered exact figures of the clients: train loss, participants" in text
        for name in shown:
            assert name.replace("_", " ") in text


def test_what_is_shown_covered_holds_no_exact_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path, "--show", "covered")
    printed = capsys.readouterr().out
    for file, names in written(folder).items():
        assert not names & EXACT, file
        assert "epsilon_spent" in names
    paid = {name for name in written(folder)["rounds.csv"] if METRICS[name].signal_class == "accounted"}
    assert paid == {"unclipped_share_noised"}
    assert "accuracy" not in printed
    assert "loss" not in printed
    assert "shown, not covered nothing" in " ".join(printed.split())
    assert read_record(folder).facts.shown == ()
    exact = tmp_path / "all"
    everything = run(exact)
    with (everything / "rounds.csv").open() as file:
        values = {row[name] for row in csv.DictReader(file) for name in EXACT & set(row)}
    # Nor does an exact value stand anywhere else, under another name.
    values = {value for value in values if "." in value and len(value) > 8}
    assert len(values) > 10
    for path in folder.iterdir():
        if path.suffix in (".json", ".csv", ".yaml", ".jsonl"):
            assert not [value for value in values if value in path.read_text()], path.name


def test_covered_rounds_are_those_of_everything_shown(tmp_path: Path) -> None:
    rows = []
    for show in ("all", "covered"):
        with (run(tmp_path / show, "--show", show) / "rounds.csv").open() as file:
            rows.append(list(csv.DictReader(file)))
    everything, covered = rows
    assert [{name: row[name] for name in other} for row, other in zip(everything, covered, strict=True)] == covered


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--show", "most"], "show 'most' is unknown"),
        (["--show", "covered", "--guarantee", "as-published"], "guarantee is as-published"),
        (["--show", "covered", "--epsilon", "inf"], "adds no noise, so nothing is covered"),
        (
            ["--show", "covered", "--method", "fedavg", "--epsilon", "inf", *NO_KNOBS],
            "adds no noise, so nothing is covered",
        ),
        (["--show", "covered", "--population", "all", "--train-on", "all", "--controller", "best-fixed"], "tuned on"),
    ],
)
def test_a_run_that_is_not_covered_is_not_called_so(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options, "--search-instances", "1", "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "change", [{"uncovered": ("exact figures that the controller saw: trimmed_loss",)}, {"guarantee": "as-published"}]
)
def test_a_controller_that_reads_exact_figures_is_not_covered(change: dict[str, Any]) -> None:
    facts = FACTS | change
    Shown("all").check(facts, 8.0, tuned_here=True)
    with pytest.raises(InputError, match="show is 'covered', but"):
        Shown("covered").check(facts, 8.0, tuned_here=False)
    Shown("covered").check(FACTS, 8.0, tuned_here=False)
    Shown("covered").check(FACTS | {"exchanges": False}, math.inf, False)


def test_a_metric_that_nobody_classed_counts_as_exact() -> None:
    assert is_exact("invented")
    assert not is_exact("release_layer_norm.dense")
    assert exact_metrics(["participants", "clip_norm", "train_loss", "participants"]) == ("participants", "train_loss")
    assert not_covered(["a"], ["train_loss", "participants"]) == (
        "a",
        "exact figures of the clients: train loss, participants",
    )
    assert not_covered([], []) == ()
