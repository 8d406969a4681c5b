"""A controller that returns no number: run and comparison end its runs as diverged, and say so."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from experiments import main
from policies import CONTROLLERS, Controller, Parameter
from policies.parameters import NOT_NEGATIVE
from policies.view import Seen

COMMON = "--task digits --clients 8 --rounds 3 --local-steps 1 --partition iid --executor sequential"
FEW = COMMON.split(" ")


class Failing(Controller):
    name = "failing"
    summary = "the default clip norm, and NaN from a round on"
    parameters = (Parameter("after", "rounds done before it fails", 1.0, allowed=NOT_NEGATIVE),)
    label_format = "fails after {after:g}"

    @override
    def decide(self, seen: Seen) -> dict[str, np.ndarray]:
        return {"clip_norm": np.where(seen.round >= self.values["after"], math.nan, 1.0)}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTROLLERS, Failing.name, Failing)


@pytest.mark.parametrize("after", [0, 2])
def test_a_run_ends_where_its_controller_fails(after: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--controller", f"failing:{after}", "--runs", str(tmp_path), *FEW]) == 0
    printed = capsys.readouterr().out
    assert f"The run diverged: in round {after + 1} its controller returned no finite number." in printed
    (folder,) = tmp_path.iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["diverged"], summary["rounds"]) == ("complete", True, after)
    with (folder / "rounds.csv").open() as file:
        assert len(list(csv.DictReader(file))) == after
    assert main(["ledger", str(folder)]) == 0


def test_a_comparison_counts_the_runs_in_which_a_controller_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--controllers", "fixed", "failing:1", "--seeds", "2", "--runs", str(tmp_path), *FEW]
    assert main(command) == 0
    assert "Diverged: fails after 1 on 2 of 2 seeds." in " ".join(capsys.readouterr().out.split())
    (folder,) = tmp_path.iterdir()
    with (folder / "comparison.csv").open() as file:
        assert [(line["controller"], line["diverged"]) for line in csv.DictReader(file)] == [
            *[("fixed", "False")] * 2,
            *[("failing:1", "True")] * 2,
        ]
