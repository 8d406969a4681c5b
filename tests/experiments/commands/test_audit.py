import json
import re
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.commands import audit as audit_command
from experiments.commands.audit import PAPERS
from fl_core.recipes.catalog import METHODS
from tests.experiments.basis import require_basis

SMALL = ["--clients", "20", "--rounds", "3", "--canaries", "40"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_audit_prints_claim_and_measurement_and_leaves_figure_and_figures(folder, capsys):
    assert main(["audit", *SMALL]) == 0
    printed = capsys.readouterr().out
    require_basis(printed)
    for words in ("claimed ε", "certified ε", "measured μ", "one-run bound", "sensitivity", "noise", "No leak found"):
        assert words in printed
    (run,) = (folder / "runs").iterdir()
    assert (run / "scores.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((run / "audit.json").read_text())
    assert found["leaks"] is False
    assert found["canaries"]["mu_measured"]["low"] < found["canaries"]["mu_claimed"]
    assert len(found["canaries"]["scores"]) == 40
    assert found["claimed_epsilon"] == pytest.approx(7.5, rel=1e-3)


def test_a_page_names_claim_certificate_uncovered_releases_and_the_command(folder, capsys):
    options = ["--method", "fedaddp", "--guarantee", "as-published", "--page", "pages/verdict.md"]
    assert main(["audit", "--clients", "10", "--rounds", "2", "--canaries", "40", *options]) == 0
    assert not list((folder / "pages").glob(".*"))  # nothing half-written is left
    text = (folder / "pages/verdict.md").read_text()
    assert "Not as claimed" in text
    require_basis(text)
    assert re.search(r"\| certified ε +\| none ", text)
    assert "C·sqrt(size/M)" in text
    assert "dpilot audit --task digits" in text
    assert "--method fedaddp --guarantee as-published --clients 10 --rounds 2" in text
    assert "![" in text
    assert (folder / "pages/verdict.png").exists()
    assert "Not as claimed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "local-only"], "releases nothing"),
        (["--method", "fedavg", "--epsilon", "inf"], "claims no epsilon"),
        (["--epsilon", "inf"], "epsilon is inf"),
        (["--canaries", "3"], "canaries is 3"),
        (["--clip-norm", "-1"], "clip_norm is -1"),
        (["--seed", "-1"], "seed is -1"),
        (["--method", "fedda"], "did you mean feddpa"),
        (["--placement", "locl"], "did you mean local"),
        (["--papers", "x", "--page", "y"], "page and papers"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_status_2(arguments, sentence, capsys):
    assert main(["audit", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.strip().count("\n") == 0


def test_committed_pages_are_of_the_five_papers_as_published():
    results = Path(__file__).parents[3] / "experiments/results"
    assert set(PAPERS) <= set(METHODS)
    for method in PAPERS:
        text = (results / f"verdict-{method}.md").read_text()
        assert "claimed ε" in text
        assert "as-published" in text
        assert (results / f"verdict-{method}.png").exists()


def test_pages_that_are_interrupted_go_on_to_the_same_pages(folder, monkeypatch, capsys):
    small = {"clients": 10, "rounds": 2, "epsilon": 2.0, "delta": 1e-5, "clip_norm": 0.5}
    monkeypatch.setattr(
        audit_command, "PAPERS", {name: (name, small) for name in ("dp-fedavg", "fedglp-adp", "feddpa")}
    )
    plain, audited = audit_command._audited, []

    def interrupted(command, progress):
        if len(audited) == 2:
            raise KeyboardInterrupt
        audited.append(command.federation.method)
        return plain(command, progress)

    arguments = ["audit", "--canaries", "40", "--papers", "pages"]
    pages = {}
    for place in ("whole", "stopped"):
        (folder / place).mkdir()
        monkeypatch.chdir(folder / place)
        if place == "stopped":
            monkeypatch.setattr(audit_command, "_audited", interrupted)
            capsys.readouterr()
            assert main(arguments) == 130
            said = capsys.readouterr().err
            assert "'pages' holds 2 finished pages; to go on: dpilot audit --resume pages" in said
            assert audited == ["dp-fedavg", "fedglp-adp"]
            audited.clear()
            assert main(["audit", "--resume", "pages", "--seed", "1"]) == 2
            arguments = ["audit", "--resume", "pages"]
        assert main(arguments) == 0
        pages[place] = {path.name: path.read_bytes() for path in Path("pages").iterdir()}
    assert audited == ["feddpa"]
    assert len(pages["whole"]) == 6
    assert pages["stopped"] == pages["whole"]
    assert main(["audit", "--resume", "pages"]) == 2
    assert "holds no order.json" in capsys.readouterr().err


def test_pages_by_two_processes_are_those_of_one(tmp_path, monkeypatch, capsys):
    small = {"clients": 10, "rounds": 2, "epsilon": 2.0, "delta": 1e-5, "clip_norm": 0.5}
    papers = {"dp-fedavg": ("dp-fedavg", small), "fedglp-adp": ("FedGLP-ADP", small)}  # as processes know their names
    monkeypatch.setattr(audit_command, "PAPERS", papers)
    pages = {}
    for jobs in ("1", "2"):
        (tmp_path / jobs).mkdir()
        monkeypatch.chdir(tmp_path / jobs)
        assert main(["audit", "--canaries", "40", "--papers", "pages", "--jobs", jobs]) == 0
        assert capsys.readouterr().out.count("\nRecords: ") == 2
        pages[jobs] = {path.name: path.read_bytes() for path in Path("pages").iterdir()}
    assert len(pages["1"]) == 4
    assert pages["2"] == pages["1"]


def test_workers_of_one_audit_are_refused(folder, capsys):
    assert main(["audit", *SMALL, "--jobs", "2"]) == 2
    assert "--jobs 2 is given, but there is one audit, in this process; add --papers" in capsys.readouterr().err
    assert not list(folder.iterdir())
