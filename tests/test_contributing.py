"""What CONTRIBUTING tells is true: its examples run, and the places that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from envs import DPilotEnv, signals
from experiments.papers import tables
from tests.import_graph import ROOT
from tests.markdown import Block, blocks, restored_catalogues, script

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
EXAMPLES = blocks(CONTRIBUTING, "python")

torch.set_num_threads(1)


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.heading.removeprefix("... ").replace(" ", "-"))
def test_an_example_registers_its_kind_and_runs(block: Block) -> None:
    with restored_catalogues(), script(CONTRIBUTING) as execute:
        execute(block)


def test_a_papers_table_is_read_from_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = blocks(CONTRIBUTING, "yaml")
    (tmp_path / "a-paper-table9.yaml").write_text(block.code, encoding="utf-8")
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    table = tables.find_table("a-paper-table9")
    assert table.blocks["mnist"].number("FedDPA", "epsilon=8") == 88.0


def test_a_line_in_the_catalogue_of_signals_reaches_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = signals._catalogue
    line = signals._figure("server_norm", np.log10, "log10(x)", "norm of the server's model")
    monkeypatch.setattr(signals, "_catalogue", lambda classes: (*lines(classes), line))
    env = DPilotEnv(task="digits", clients=6, rounds=2, reward="final-accuracy")
    place = [signal.name for signal in env.signals].index("server_norm")
    env.reset(seed=0)
    observation, *_, info = env.step(np.zeros(1, dtype=np.float32))
    assert observation[place] == pytest.approx(np.log10(info["server_norm"]), rel=1e-6)


def test_every_place_that_is_named_exists() -> None:
    text = re.sub(r"^```.*?^```$", "", CONTRIBUTING.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    places = [name for name in re.findall(r"`([\w./-]+)`", text) if "/" in name]
    assert len(places) > 30
    missing = [name for name in places if not name.startswith(("DPilot/", "build/")) and not (ROOT / name).exists()]
    assert not missing


def test_every_name_of_a_catalogue_stands_in_the_file_named_with_it() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    named = re.findall(r"`([A-Z_]{4,}|_catalogue)` of\s+`([\w/.]+\.py)`", text)
    assert len(named) >= 10
    for name, place in named:
        assert re.search(rf"^(def )?{name}\b", (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE), (name, place)
