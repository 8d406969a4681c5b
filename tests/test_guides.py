"""The guides run from top to bottom: their Python as one script, their commands through the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from experiments import main
from tests.experiments.conftest import without_figures
from tests.import_graph import ROOT
from tests.markdown import all_blocks, blocks, restored_catalogues, script

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))

torch.set_num_threads(1)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_runs(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPILOT_DATA", str(tmp_path / "data"))
    found = all_blocks(guide)
    assert sum(block.language == "python" for block in found) >= 3
    with restored_catalogues(), without_figures(), script(guide) as execute:
        for block in found:
            if block.language == "python":
                execute(block)
            for line in block.code.splitlines() if not block.language else ():
                program, *arguments = shlex.split(line)
                assert program == "dpilot"
                assert main(arguments) == 0, line


def test_the_readmes_python_runs() -> None:
    [block] = blocks(ROOT / "README.md", "python")
    with script(ROOT / "README.md") as execute:
        execute(block)
