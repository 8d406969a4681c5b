"""The throughput of workers is measured by jobs that run."""

from __future__ import annotations

import pytest

from experiments.benchmarks import workers
from experiments.benchmarks.workers import jobs_per_second


def test_jobs_per_second_are_of_runs_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SETTING", workers.SETTING.replace(rounds=1))
    assert jobs_per_second("processes", 1, jobs=2) > 0
