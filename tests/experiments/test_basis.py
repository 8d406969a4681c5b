"""Every ε that is printed, drawn or logged comes with its unit, adjacency, observer and amplification."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import experiments.commands.demo as demo_module
from envs import DPilotEnv
from experiments.cli import main
from experiments.commands.demo import DemoCommand
from experiments.papers.results import Number
from experiments.papers.sheets import _span
from experiments.records.ledger_file import read_record
from experiments.records.tensorboard import BASIS as TAG
from experiments.reports import comparison as report
from experiments.reports import figures
from experiments.reports.ledger_figure import ledger_figure
from experiments.reports.pages import html, markdown
from experiments.reports.verdict import verdict
from fl_core.run.basis import basis_of, basis_text
from fl_core.run.config import FederationConfig
from tests.envs.conftest import PLAIN
from tests.experiments.basis import require_basis
from tests.experiments.records.test_comparison import make_comparison, make_controller

ROOT = Path(__file__).parents[2]
SMALL = ["--clients", "10", "--rounds", "3", "--local-steps", "2", "--executor", "vectorized"]

TELLS = {
    "experiments/benchmarks/control_boards.py": "the overview of controllers, see test_control_results",
    "experiments/commands/advise.py": "advice, see test_advise",
    "experiments/commands/audit.py": "pages of audits, see test_audit",
    "experiments/commands/demo.py": "the demo's first line",
    "experiments/commands/run_summary.py": "a run's summary",
    "experiments/papers/pictures.py": "the pictures of a paper's table, see test_pictures",
    "experiments/reports/audit.py": "audits and their pages, see test_audit",
    "experiments/reports/figures.py": "figures of a comparison",
    "experiments/reports/ledger_figure.py": "the figure of a ledger",
    "experiments/reports/privacy.py": "a comparison's report",
    "experiments/reports/words.py": "a comparison's report and verdict",
    "experiments/statistics/summary.py": "a comparison's report and verdict",
}
"""Module that writes the number of an ε into a text -> the page that it stands on, which is rendered here."""
REFUSES = {
    "experiments/papers/cell_checks.py": "a record whose spent budget is out of range",
    "experiments/papers/cells.py": "the name of a paper's cell: what was asked for",
    "experiments/records/shown.py": "bad input",
    "fl_core/privacy/ledger.py": "a refused round, which certifies nothing",
    "fl_core/run/budget.py": "bad input",
    "fl_core/run/config.py": "bad input",
    "fl_core/run/federation.py": "bad input",
}
"""Module that repeats an ε which was asked for, where nothing is promised -> where."""


def writes_epsilon(source: str) -> bool:
    """Return True if an f-string puts a value after the word."""
    told = re.compile(r"(epsilon|ε)\W*$", re.IGNORECASE)
    texts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)]
    return any(
        isinstance(before, ast.Constant) and isinstance(after, ast.FormattedValue) and told.search(str(before.value))
        for text in texts
        for before, after in zip(text.values, text.values[1:], strict=False)
    )


def texts_of(figure: Figure) -> str:
    return " ".join(artist.get_text() for artist in figure.findobj(lambda one: hasattr(one, "get_text")))


def test_every_module_that_writes_an_epsilon_stands_on_a_page_of_this_test() -> None:
    packages = [ROOT / name for name in ("fl_core", "envs", "policies", "agents", "experiments")]
    sources = [path for package in packages for path in package.rglob("*.py") if path.parent != ROOT / "fl_core/audit"]
    found = {str(path.relative_to(ROOT)) for path in sources if writes_epsilon(path.read_text())}
    assert found == {*TELLS, *REFUSES}


def test_the_check_sees_an_epsilon_without_basis() -> None:
    assert writes_epsilon('f"at epsilon {value:g}"')
    assert not writes_epsilon('f"{value:g} rounds, and epsilon holds"')
    with pytest.raises(AssertionError, match="without its basis"):
        require_basis("it would have cost epsilon 3.2")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
def test_a_comparison(guarantee: str) -> None:
    controllers = [make_controller("fixed:0.5", [0.5, 0.6, 0.7], search_rounds=4), make_controller("a", [0.6] * 3)]
    comparison = make_comparison(*controllers, guarantee=guarantee)
    sections = report.contents(comparison)
    for page in (verdict(comparison), markdown(comparison, sections), html(comparison, sections)):
        assert comparison.basis in require_basis(page)
    for draw in (figures.budget_figure, figures.overview_figure):
        assert comparison.basis in require_basis(texts_of(draw(comparison)))


def test_a_run_its_ledger_and_its_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--controller", "best-fixed", "--search-instances", "1", "--sampling-rate", "0.5"]
    assert main(["run", *options, *SMALL, "--runs", str(tmp_path)]) == 0
    basis = basis_of(FederationConfig(sampling_rate=0.5))
    assert basis.endswith("amplified by secret sampling at rate 0.5")
    page = require_basis(capsys.readouterr().out)
    assert re.search(rf"would have cost epsilon [\d.]+, for {re.escape(basis)}", page)
    (folder,) = tmp_path.iterdir()
    assert main(["ledger", str(folder)]) == 0
    require_basis(capsys.readouterr().out)
    assert basis in require_basis(texts_of(ledger_figure(read_record(folder))))
    events = EventAccumulator(str(folder)).Reload()
    (told,) = events.Tensors(f"{TAG}/text_summary")
    assert told.tensor_proto.string_val[0].decode() == basis


def test_the_tasks_of_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks"]) == 0
    page = capsys.readouterr().out
    assert page.count("unit one client") == 3
    assert "epsilon holds for" in page


def test_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "train_in", stop)
    with pytest.raises(KeyboardInterrupt):
        DemoCommand(runs=tmp_path).execute()
    require_basis(capsys.readouterr().out)


@pytest.mark.parametrize("placement", ["central", "distributed"])
def test_a_rendered_episode(placement: str) -> None:
    env = DPilotEnv(**PLAIN, placement=placement, sampling_rate=0.5, render_mode="ansi")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    text = env.render()
    assert isinstance(text, str)
    assert basis_of(env.core.federation.config) in require_basis(text)


def test_the_remarks_of_a_papers_sheet_name_the_basis_of_each_view() -> None:
    seen = basis_text("zero-out", "distributed", uploads=True)
    (remark,) = _span("if the server sees single uploads,", [(5.0, seen), (None, ""), (18.9, seen)])
    assert "certifies ε from 5 to 18.9, for unit one client, zero-out" in require_basis(remark)
    assert remark.endswith("who takes part; no amplification")
    assert len(_span("at δ = 1e-5", [(5.0, seen), (6.0, basis_text("add-remove", "central"))])) == 2
    assert {"basis", "uploads_basis"} <= set(Number.__dataclass_fields__)
