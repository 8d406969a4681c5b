"""Each command trains and tunes on proxies, deploys on targets, and says so where it was told otherwise."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs import Setting
from envs.tasks import TASKS, find_task
from experiments.cli import main
from experiments.commands.compare import CompareCommand
from experiments.commands.run import RunCommand
from experiments.commands.train import TrainCommand
from experiments.contenders.bench import Bench
from experiments.contenders.preparing import make_players
from experiments.papers.federations import make_federation
from experiments.reports.comparison import contents
from experiments.reports.comparison_csv import csv_text
from experiments.reports.verdict import verdict
from fl_core.run import calibration
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from tests.experiments.records.test_comparison import make_comparison, make_controller

SMALL = ["--clients", "10", "--rounds", "2", "--local-steps", "1", "--executor", "vectorized"]
TUNED = [*SMALL, "--search-instances", "1"]
TINY_TRAINING = [
    *("--episodes", "2", "--environments", "2", "--episodes-per-instance", "1", "--n-epochs", "1"),
    *("--validation-instances", "1", "--parallel", "rows", "--decision-rounds", "1"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Populations of the federations that ran a round, in order, each once in a row; those of random data left out."""
    seen: list[str] = []
    random: list[Federation] = []
    run_round, of_random_data = Federation.run_round, calibration._federation

    def made_of_random_data(config: FederationConfig) -> Federation:
        random.append(of_random_data(config))
        return random[-1]

    monkeypatch.setattr(calibration, "_federation", made_of_random_data)

    def spied(self: Federation, *arguments: Any, **named: Any) -> Any:
        known = any(self is one for one in random)
        if not known and seen[-1:] != [self.config.population]:
            seen.append(self.config.population)
        return run_round(self, *arguments, **named)

    monkeypatch.setattr(Federation, "run_round", spied)
    return seen


def _only(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


@pytest.mark.parametrize(("flag", "search"), [([], "proxy"), (["--train-on", "target"], "target")])
def test_a_run_searches_on_proxies_and_says_what_it_searched_on(
    folder: Path, met: list[str], capsys: pytest.CaptureFixture[str], flag: list[str], search: str
) -> None:
    assert main(["run", "--controller", "best-fixed", *TUNED, *flag]) == 0
    assert met == list(dict.fromkeys([search, "target"]))
    printed = capsys.readouterr()
    summary = json.loads((_only(folder) / "summary.json").read_text())
    assert (summary["population"], summary["tuned_population"]) == ("target", search)
    assert f"training instance of {search} clients" in summary["tuned_on"]
    assert f"training instance of {search} clients: 26 rounds" in printed.out
    assert ("epsilon leaves out what they told about the target clients" in printed.out) is (search == "target")
    assert main(["ledger", str(_only(folder))]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "population target" in shown
    assert f"training instance of {search} clients: 26 rounds" in shown
    assert ("leaves out" in shown) is (search == "target")
    assert ("epsilon does not contain" in printed.err) is (search == "target")


def test_a_run_without_search_says_nothing_of_tuning(
    folder: Path, met: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--controller", "fixed", *SMALL]) == 0
    assert met == ["target"]
    assert "tuned on" not in capsys.readouterr().out
    assert json.loads((_only(folder) / "summary.json").read_text())["tuned_population"] == ""


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("search", ["proxy", "target"])
def test_a_comparison_reports_what_it_tuned_on(
    folder: Path, met: list[str], capsys: pytest.CaptureFixture[str], search: str
) -> None:
    flag = [] if search == "proxy" else ["--train-on", search]
    assert main(["compare", "--controllers", "fixed", "best-fixed", "--seeds", "2", *TUNED, *flag]) == 0
    assert met == list(dict.fromkeys([search, "target"]))
    printed = capsys.readouterr()
    assert ("epsilon does not contain" in printed.err) is (search == "target")
    assert ("compared on target clients" in " ".join(printed.out.split())) is (search == "target")
    run = _only(folder)
    comparison = json.loads((run / "comparison.json").read_text())
    assert comparison["population"] == "target"
    assert [one["tuned_population"] for one in comparison["controllers"]] == ["", search]
    lines = list(csv.DictReader((run / "comparison.csv").read_text().splitlines()))
    assert {line["tuned_population"] for line in lines} == {"", search}
    assert {line["population"] for line in lines} == {"target"}
    for name in ("report.md", "report.html"):
        page = (run / name).read_text()
        assert f"training instance of {search} clients" in page
        assert ("ε is not all that these clients lose" in page) is (search == "target")
        assert ("share no sample with the target clients" in page) is (search == "proxy")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("trained_on", ["proxy", "target"])
def test_a_trained_controller_carries_its_clients_into_every_comparison(
    folder: Path, met: list[str], capsys: pytest.CaptureFixture[str], trained_on: str
) -> None:
    flag = [] if trained_on == "proxy" else ["--train-on", trained_on]
    assert main(["train", *TINY_TRAINING, *SMALL, *flag]) == 0
    assert met == [trained_on]
    printed = capsys.readouterr()
    assert ("training on target clients costs them privacy" in printed.err) is (trained_on == "target")
    assert "--population" not in printed.out
    run = _only(folder)
    assert json.loads((run / "summary.json").read_text())["population"] == trained_on
    assert yaml.safe_load((run / "config.yaml").read_text())["train_on"] == trained_on
    assert main(["compare", "--controllers", "fixed", f"ppo:{run}", "--seeds", "1", *SMALL, "--runs", "other"]) == 0
    printed = capsys.readouterr()
    assert (f"ppo:{run}: trained or tuned on target clients" in printed.err) is (trained_on == "target")
    (other,) = (folder / "other").iterdir()
    assert f"of {trained_on} clients" in (other / "report.md").read_text()


def test_bad_populations_get_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["run", "--population", "proxies"], "population 'proxies' is unknown; did you mean proxy"),
        (["run", "--train-on", "targets"], "train_on 'targets' is unknown; did you mean target"),
        (["compare", "--train-on", ""], "train_on '' is unknown"),
        (["train", "--train-on", "tagret"], "train_on 'tagret' is unknown; did you mean target"),
        (["train", "--population", "all"], "population is 'all', but a training takes its clients from train_on"),
    ):
        assert main(arguments) == 2
        printed = capsys.readouterr()
        assert sentence in printed.err
        assert printed.err.strip().count("\n") == 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize("command", [RunCommand, CompareCommand, TrainCommand])
def test_commands_made_in_python_are_about_targets_too(command: Any) -> None:
    assert command().federation.population == "target"
    assert command().train_on == "proxy"


@pytest.mark.usefixtures("undrawn")
def test_the_demo_trains_and_tunes_on_proxies_and_compares_on_targets(
    folder: Path, met: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = find_task("digits", clients=10, rounds=4, local_steps=1, executor="vectorized")
    monkeypatch.setitem(TASKS, "digits", small)
    assert main(["demo", "--seeds", "1", "--episodes", "8", "--search-instances", "1"]) == 0
    assert met == ["proxy", "target"]
    assert "warning" not in capsys.readouterr().err


def test_papers_take_their_whole_dataset() -> None:
    assert make_federation({"dataset": "digits", "rounds": 2}, "sound").population == "all"


def test_players_on_test_instances_are_meant_for_targets(recwarn: pytest.WarningsRecorder) -> None:
    setting = Setting.of("digits", clients=10, rounds=2, local_steps=1, executor="vectorized", instances="test")
    make_players(["best-fixed"], Bench(setting, 1))
    assert not [one for one in recwarn if "epsilon does not contain" in str(one.message)]
    with pytest.warns(UserWarning, match="best-fixed: trained or tuned on all clients, to act on target clients"):
        make_players(["best-fixed"], Bench(setting, 1, "all"))


def test_verdict_and_costs_name_who_was_tuned_on_the_clients_compared() -> None:
    fixed = make_controller("fixed:1", [0.5, 0.6])
    apart = make_controller("best-fixed", [0.6, 0.7], search_rounds=100, tuned_population="proxy")
    shared = make_controller("ppo:x", [0.7, 0.8], training_rounds=50, tuned_population="target")
    comparison = make_comparison(fixed, apart, shared, population="target")
    text = verdict(comparison)
    told = "Trained or tuned on target clients, compared on target clients: ppo:x; ε does not contain these rounds (50"
    assert told in text
    (costs,) = (section for section in contents(comparison) if section.title.startswith("Cost"))
    assert any("best fixed: trained or tuned on clients that share no sample" in str(block) for block in costs.blocks)
    assert any("ppo:x: trained or tuned on samples of the target clients" in str(block) for block in costs.blocks)
    assert "compared on target clients" not in verdict(make_comparison(fixed, apart, population="target"))
    assert "proxy clients, compared on all clients: best fixed" in verdict(make_comparison(fixed, apart))
    lines = list(csv.DictReader(csv_text(comparison).splitlines()))
    assert [line["tuned_population"] for line in lines] == ["", "", "proxy", "proxy", "target", "target"]
