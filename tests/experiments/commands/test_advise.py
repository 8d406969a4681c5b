"""`dpilot advise` prints and returns its advice, loads no data, and names commands that can be typed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from experiments import main
from experiments.commands.catalog import COMMANDS
from experiments.commands.options import parse
from fl_core.data import datasets
from tests.experiments.basis import require_basis


@pytest.fixture(autouse=True)
def _nothing_is_loaded_or_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a dataset was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", refused)
    monkeypatch.setattr(datasets, "_load", refused)
    yield
    assert list(tmp_path.iterdir()) == []


def advised(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["advise", *options, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_default_task_is_usable_and_few_clients_at_little_epsilon_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = advised(capsys)
    assert usual["verdict"] == "usable"
    assert usual["would_be"] == {}
    assert usual["noise_multiplier"] == pytest.approx(4.005, abs=1e-3)
    few = advised(capsys, "--clients", "20", "--epsilon", "1")
    assert few["verdict"] == "not usable"
    assert few["signal_to_noise"]["run"] < usual["signal_to_noise"]["run"]
    enough = few["would_be"]["usable"]
    assert advised(capsys, "--clients", str(enough["clients"]), "--epsilon", "1")["verdict"] == "usable"
    assert advised(capsys, "--clients", "20", "--epsilon", str(enough["epsilon"] * 1.001))["verdict"] == "usable"


def test_it_is_printed_with_the_basis_of_its_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--clients", "20", "--epsilon", "1"]) == 0
    page = capsys.readouterr().out
    require_basis(page)
    words = " ".join(page.split())
    for expected in ("not usable", "no sample of any client", "advised", "dpilot compare", "(as set)", "usable with"):
        assert expected in words


def test_its_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    found = advised(capsys, "--clients", "60", "--learning-rate", "0.2", "--method", "fedper")
    for command in found["commands"]:
        program, name, *arguments = shlex.split(command)
        assert program == "dpilot"
        options = parse(name, COMMANDS[name].load_options(), arguments).command
        assert (options.federation.clients, options.federation.learning_rate) == (60, 0.2)
        assert options.federation.method == "fedper"
        assert options.federation.rounds == found["recommended"]["rounds"]


def test_a_budget_stated_as_noise_is_the_same_budget_in_other_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    found = advised(capsys, "--noise-multiplier", "4", "--rounds", "40")
    own = {one["rounds"]: one["noise_multiplier"] for one in found["rounds"]}
    assert own[40] == pytest.approx(4, rel=1e-5)
    assert own[160] == pytest.approx(8, rel=1e-5)


def test_sampled_cohorts_are_looked_at_at_several_rates(capsys: pytest.CaptureFixture[str]) -> None:
    found = advised(capsys, "--sampling-rate", "0.5", "--rounds", "10", "--clients", "100")
    assert [one["sampling_rate"] for one in found["sampling_rates"]] == [0.25, 0.5, 1.0]
    assert "amplified by secret sampling at rate 0.5" in found["epsilon_holds_for"]


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--method", "fedavg", "--epsilon", "inf"], "method 'fedavg' adds no noise"),
        (["--method", "local-only", "--epsilon", "inf"], "method 'local-only' adds no noise"),
        (["--epsilon", "inf"], "epsilon is inf"),
        (["--task", "digit"], "did you mean digits"),
        (["--rounds", "0"], "rounds is 0"),
        (["--model", "lenet"], "at least 28x28"),
    ],
)
def test_what_there_is_nothing_to_say_of_is_refused_in_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *options]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
