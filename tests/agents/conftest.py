"""A training small enough for tests: 10 clients, 4 rounds, 2 decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agents import TrainingConfig, TrainingResult, train

TINY: dict[str, Any] = {"clients": 10, "rounds": 4, "decision_rounds": 2, "partition": "iid", "executor": "vectorized"}
SHORT = TrainingConfig(
    environments=2,
    episodes_per_instance=1,
    episodes=6,
    n_epochs=2,
    network=(8,),
    validation_instances=2,
    validation_every=2,
    parallel="rows",
)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(TINY, SHORT, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def saved(trained: TrainingResult, tmp_path: Path) -> Path:
    """A copy of the trained controller's folder, to be spoilt."""
    folder = tmp_path / "controller"
    folder.mkdir()
    for file in trained.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
