"""What does not fit into memory is refused before work, with the setting to lower."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fl_core.base.memory as memory
import fl_core.run.footprint as footprint
from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation

CPU = torch.device("cpu")
SMALL = {"clients": 8, "rounds": 2, "executor": "vectorized"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch_size": 100_000}, "batch_size is 100000"),
        ({"local_steps": 10_000}, "local_steps is 10000"),
        ({"local_epochs": 1000.0}, "local_epochs is 1000.0"),
    ],
)
def test_the_setting_that_takes_most_is_named(
    changes: dict[str, float], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "free_bytes", lambda device: 2.0**20)
    with pytest.raises(InputError, match=rf"{named}, with which a round takes some .* GiB of memory.*; lower it\."):
        Federation(FederationConfig(**SMALL | changes))  # type: ignore[arg-type]


def test_many_clients_count_with_their_state_and_their_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.5 MiB hold either (1.41 and 0.49 MiB), but not both."""
    monkeypatch.setattr(footprint, "free_bytes", lambda device: 1.5 * 2**20)
    with pytest.raises(InputError, match="clients is 300, with which a round takes"):
        Federation(FederationConfig(**SMALL | {"clients": 300}))  # type: ignore[arg-type]


def test_runs_side_by_side_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for one run, but not for many."""
    free = 2.0**23
    monkeypatch.setattr(footprint, "free_bytes", lambda device: free)
    Federation(FederationConfig(**SMALL))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"clients is 8, .* for 200 runs side by side"):
        Federation(FederationConfig(**SMALL), 200)  # type: ignore[arg-type]


def test_the_tightest_of_the_systems_limits_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, content in (("memory.max", "5000"), ("memory.current", "2000")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.free_bytes(CPU) == 3000
    (tmp_path / "memory.current").write_text("7000")
    assert memory.free_bytes(CPU) == 0
    (tmp_path / "memory.max").write_text("max")
    assert memory.free_bytes(CPU) > 7000
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 4096))
    assert memory.free_bytes(CPU) == 0
