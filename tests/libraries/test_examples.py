"""The examples of `docs/examples` run: the one in plain torch always, the others where their library is installed."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest

from experiments.cli import main
from tests.import_graph import ROOT
from tests.libraries.conftest import TINY


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ppo_in_a_single_file() -> None:
    train = example("single_file_ppo").train
    first = train(2, rows=2, steps=6, **TINY)
    assert len(first) == 2
    assert all(math.isfinite(score) for score in first)
    assert train(2, rows=2, steps=6, **TINY) == first


@pytest.mark.long
def test_ppo_of_rllib_comes_back_as_a_controller_that_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray.rllib")
    saved, place = tmp_path / "rllib.pt", tmp_path / "runs"
    [score] = example("rllib_ppo").train(1, steps=12, save=saved, **TINY)
    assert 0 < score < 1
    federation = {name: value for name, value in TINY.items() if name != "reward"}
    options = [word for name, value in federation.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    options += ["--delta", "0.05", "--runs", str(place)]
    assert main(["import", str(saved), "--knobs", "clip_norm", "--signals", "public", *options, "--trust"]) == 0
    controllers = ["fixed", f"torchscript:{place / 'rllib'}"]
    assert main(["compare", *options, "--seeds", "2", "--controllers", *controllers]) == 0
    assert "rllib" in capsys.readouterr().out


@pytest.mark.long
def test_search_by_optuna() -> None:
    pytest.importorskip("optuna")
    settings = {name: value for name, value in TINY.items() if name != "reward"}
    study = example("optuna_search").search(3, instances=2, **settings)
    assert len(study.trials) == 3
    assert 0 < study.best_value < 1
