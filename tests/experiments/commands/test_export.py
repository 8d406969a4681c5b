import csv
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli import main
from experiments.records.comparison import Comparison
from experiments.reports.tables import Table, latex_text

SMALL = ["--clients", "10", "--rounds", "3", "--local-steps", "2", "--executor", "vectorized"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run, a comparison and what is neither."""
    folder = tmp_path_factory.mktemp("finished") / "runs"
    assert main(["run", *SMALL, "--seed", "7", "--runs", str(folder), "--quiet"]) == 0
    arguments = ["--controllers", "fixed", "aqc", "--seeds", "2", "--runs", str(folder), "--quiet"]
    assert main(["compare", *SMALL, *arguments]) == 0
    (folder / "neither").mkdir()
    return folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def only(runs, words):
    (found,) = (path for path in runs.iterdir() if words in path.name)
    return found


def test_every_round_of_every_run_and_controller_is_a_row(runs, capsys):
    assert main(["export", *map(str, sorted(runs.iterdir())), "--figures", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    table = pd.read_csv("export/rounds.csv")
    assert told["rounds"] == len(table) == 3 + 2 * 2 * 3
    assert told["left_out"] == [str(runs / "neither")]
    run = table[table.folder == only(runs, "__7__").name]
    with (only(runs, "__7__") / "rounds.csv").open() as file:
        own = list(csv.DictReader(file))
    assert run["clip_norm"].tolist() == [float(row["clip_norm"]) for row in own]
    assert run["personal_accuracy"].tolist() == [float(row["personal_accuracy"]) for row in own]
    comparison = Comparison.read(only(runs, "compare") / "comparison.json")
    episode = comparison.controllers[1].episodes[1]
    rows = table[(table.controller == comparison.controllers[1].name) & (table.seed == episode.seed)]
    assert rows["round"].tolist() == [1, 2, 3]
    for name in episode.trajectory:
        indices, values = episode.series(name)
        assert rows[rows["round"].isin(indices)][name].tolist() == pytest.approx(list(values))


def test_parquet_holds_the_same_rows(runs):
    pytest.importorskip("pyarrow")
    folders = [str(only(runs, "compare"))]
    assert main(["export", *folders, "--format", "parquet", "--figures"]) == 0
    assert main(["export", *folders, "--figures"]) == 0
    binary, text = pd.read_parquet("export/rounds.parquet"), pd.read_csv("export/rounds.csv")
    assert list(binary.columns) == list(text.columns)
    assert binary["clip_norm"].tolist() == text["clip_norm"].tolist()


def test_figures_are_written_in_each_format_and_repeat_bit_for_bit(runs):
    folders = [str(only(runs, "compare")), str(only(runs, "__7__"))]
    for target in ("one", "two"):
        assert main(["export", *folders, "--figures", "svg", "pdf", "--to", target]) == 0
    written = sorted(path.relative_to("one") for path in Path("one").rglob("*.*"))
    assert {path.stem for path in written} >= {"accuracy", "learning", "control", "budget", "ledger"}
    for path in written:
        content = (Path("one") / path).read_bytes()
        assert content == (Path("two") / path).read_bytes()
        assert content.startswith(b"%PDF") == (path.suffix == ".pdf")


def test_the_tables_of_a_report_are_latex(runs):
    folder = only(runs, "compare")
    assert main(["export", str(folder), "--figures"]) == 0
    text = (Path("export") / folder.name / "tables.tex").read_text()
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") >= 3
    assert r"\toprule" in text
    compiler = shutil.which("xelatex") or shutil.which("lualatex")
    if compiler:
        page = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + text + r"\end{document}"
        Path("page.tex").write_text(page)
        subprocess.run([compiler, "-interaction=batchmode", "-halt-on-error", "page.tex"], check=True)


def test_letters_that_are_commands_of_latex_are_escaped():
    assert latex_text("50 % of a_b & {c} #1 $x$ ~^\\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$x\$ \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    latex = Table(("name", "value"), (("a|b", "1"),)).latex()
    assert latex.splitlines()[0] == r"\begin{tabular}{lr}"
    assert r"a|b & 1 \\" in latex


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "needs folders of runs or comparisons"),
        (["nowhere"], "The folder 'nowhere' does not exist"),
        (["."], "None of these folders holds"),
        ([".", "--format", "xlsx"], "format 'xlsx' is unknown"),
        ([".", "--figures", "gif"], "figures: format 'gif' is unknown"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(arguments, sentence, capsys, folder):
    assert main(["export", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.strip().count("\n") == 0
    assert list(folder.iterdir()) == []


def test_a_run_whose_rounds_were_edited_is_refused(runs, capsys):
    copy = shutil.copytree(only(runs, "__7__"), "copy")
    (Path(copy) / "rounds.csv").write_text("round,clip_norm\n1,many\n")
    assert main(["export", "copy"]) == 2
    assert "holds a file that no run wrote" in capsys.readouterr().err
