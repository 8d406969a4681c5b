import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli import main
from experiments.records.comparison import Comparison
from experiments.records.folder import csv_lines
from experiments.reports.comparison_csv import csv_text
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


def test_folders_of_one_name_are_told_apart_and_none_is_named_twice(runs, capsys):
    one = only(runs, "__7__")
    for place in ("here", "there"):
        shutil.copytree(one, Path(place) / one.name)
    shutil.copytree(one, f"{one.name}-2")
    folders = [f"here/{one.name}", f"there/{one.name}", f"{one.name}-2"]
    assert main(["export", *folders, "--figures", "svg"]) == 0
    table = pd.read_csv("export/rounds.csv")
    names = [one.name, f"{one.name}-2", f"{one.name}-2-2"]
    assert table.folder.unique().tolist() == names
    assert all((Path("export") / name / "ledger.svg").is_file() for name in names)
    capsys.readouterr()
    assert main(["export", folders[0], f"./here/../{folders[0]}"]) == 2
    assert "is named twice" in capsys.readouterr().err


FORMULAS = ("=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", '=HYPERLINK("x")')


def cells_of(text):
    return [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]


@pytest.mark.parametrize("text", FORMULAS)
def test_what_a_spreadsheet_would_run_is_text_and_numbers_stay_numbers(text):
    rows = [{"name": text, "value": -1.5, "text": "-1e-3"}]
    assert cells_of(csv_lines(rows)) == ["name", "value", "text", f"'{text}", "-1.5", "-1e-3"]


def test_no_csv_of_a_comparison_holds_a_formula(runs):
    copied = Path(shutil.copytree(only(runs, "compare"), "copy"))
    content = json.loads((copied / "comparison.json").read_text())
    content["controllers"][0] |= {"name": FORMULAS[1], "label": FORMULAS[1]}
    (copied / "comparison.json").write_text(json.dumps(content))
    assert main(["export", "copy", "--figures"]) == 0
    for text in (Path("export/rounds.csv").read_text(), csv_text(Comparison.read(copied / "comparison.json"))):
        cells = cells_of(text)
        assert f"'{FORMULAS[1]}" in cells
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
        assert all(float(cell) < 0 for cell in cells if cell.startswith("-"))


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
        (["."], "There are no rounds of a run"),
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
    assert "copy/rounds.csv' is none that a run wrote" in capsys.readouterr().err
