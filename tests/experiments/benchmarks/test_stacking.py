"""Rounds are measured by the memory that stacked clients may take."""

from __future__ import annotations

import pytest

from experiments.benchmarks import stacking
from fl_core.run.config import FederationConfig
from fl_core.training import executors


def test_every_limit_is_measured_with_chunks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    train = executors._train_chunk

    def noted(model, work, images):
        sizes.append(len(work.parameters))
        return train(model, work, images)

    monkeypatch.setattr(executors, "_train_chunk", noted)
    costs = stacking.stacking_costs(FederationConfig(clients=20, delta=0.01), 2, limits=(1, 8), rounds=1)
    assert list(costs) == [1, 8]
    assert min(costs.values()) > 0
    assert set(sizes) == {10, 40}
