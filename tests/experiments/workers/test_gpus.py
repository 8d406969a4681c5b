"""Processes hand out the GPUs of their machine: each worker sees its own, and a dead one's goes to the next."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.playing import RowProgress
from experiments.records.finished import Job
from experiments.workers.backends import Processes
from experiments.workers.gpus import gpu_seats
from experiments.workers.options import WorkerOptions
from experiments.workers.runner import Runner, Watch, Work
from experiments.workers.starting import start_workers
from fl_core.base.errors import InputError


@pytest.fixture(autouse=True)
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_gpus_are_dealt_out_by_the_job() -> None:
    assert gpu_seats(1) == ["0", "1"]
    assert gpu_seats(2) == ["0,1"]
    assert gpu_seats(0.5) == ["0", "1", "0", "1"]
    assert gpu_seats(0.3) == ["0", "1"] * 3
    assert gpu_seats(0.1) == ["0", "1"] * 10


def test_gpus_that_this_process_may_see_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5f")
    assert gpu_seats(1) == ["3", "GPU-5f"]


def test_as_many_jobs_run_as_the_gpus_have_room_for() -> None:
    assert Processes(None, 0.5).width == 4
    assert Processes(3, 0.5).width == 3
    assert Processes(9, 1).width == 2
    assert Processes(None).width == 1
    with start_workers(WorkerOptions(gpus_per_job=1)) as backend:
        assert isinstance(backend, Processes)


@pytest.mark.parametrize(("count", "told"), [(2, "2 usable CUDA devices"), (1, "1 usable CUDA device")])
def test_more_gpus_per_job_than_there_are_are_refused(monkeypatch: pytest.MonkeyPatch, count: int, told: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(InputError, match=rf"gpus-per-job is 4, but this machine has {told}\.$"):
        Processes(2, 4)


def test_gpus_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"gpus-per-job is 0\.5, but this machine has no usable CUDA devices\.$"):
        Processes(2, 0.5)


def seen(place: Path, dies: bool, progress: RowProgress) -> dict[str, Any]:
    """Tell which GPU this worker sees; one job kills its first worker, the other is busy until that job is done again.

    So that the job cannot go to a worker that is there already.
    """
    visible = os.environ["CUDA_VISIBLE_DEVICES"]
    if dies and not (place / "died").exists():
        (place / "died").write_text(visible)
        os.kill(os.getpid(), signal.SIGKILL)
    if dies:
        (place / "again").touch()
    end = time.monotonic() + 300
    while not (place / "again").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return {"visible": visible}


def test_workers_side_by_side_see_different_gpus_and_a_dead_ones_is_taken_over(tmp_path: Path) -> None:
    backend = Processes(None, 1)
    works = [
        Work(Job(f"job-{dies}", {"dies": dies}), partial(seen, tmp_path, dies), str(dies)) for dies in (True, False)
    ]
    try:
        with pytest.warns(UserWarning, match="its worker died"):
            again, other = Runner(backend=backend).run(works, Watch())
    finally:
        backend.close()
    assert again["visible"] == (tmp_path / "died").read_text()
    assert {again["visible"], other["visible"]} == {"0", "1"}
