"""The notebooks run from top to bottom, and lie in the repository without results."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

from tests.import_graph import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))

torch.set_num_threads(1)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 3
    names: dict[str, object] = {}
    for number, cell in enumerate(cells, 1):
        assert not cell["outputs"]
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec"), names)
