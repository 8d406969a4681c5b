"""Options of workers are refused in a sentence before anything is started."""

from __future__ import annotations

import importlib.util
import socket
from typing import Any

import pytest

from experiments.workers.options import WorkerOptions
from experiments.workers.starting import start_workers
from fl_core.base.errors import InputError


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"jobs": 0}, "jobs is 0, but it must be a whole number of at least 1"),
        ({"backend": "rya"}, "backend 'rya' is unknown; did you mean ray"),
        ({"gpus_per_job": 0.25, "backend": "dask"}, "gpus-per-job is 0.25, but backend dask hands out no GPUs; take"),
        ({"gpus_per_job": 1.5, "backend": "ray"}, "gpus-per-job is 1.5, but above 1 it must be a whole number"),
        ({"gpus_per_job": -1.0, "backend": "ray"}, "gpus-per-job is -1.0, but it must be a number in"),
        ({"address": "head:6379"}, "address is 'head:6379', but backend processes has none; add --backend ray or dask"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")), start_workers(WorkerOptions(**options)):
        pass


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_backend_that_is_not_installed_names_what_to_install(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("ray", "distributed") else find(name)
    )
    with (
        pytest.raises(InputError, match=rf"backend is {backend}, .*`pip install dpilot\[cluster\]` adds it"),
        start_workers(WorkerOptions(backend=backend)),
    ):
        pass


@pytest.mark.parametrize("backend", ["ray", "dask"])
@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("nowhere", "address is 'nowhere', but it must read HOST:PORT"),
        ("127.0.0.1:{}", "address is '127.0.0.1:.*', but no (ray|dask) cluster answers there"),
    ],
)
def test_an_address_that_does_not_answer_is_named(
    backend: str, address: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets it, and it refuses
        options = WorkerOptions(backend=backend, address=address.format(unused.getsockname()[1]))
        with pytest.raises(InputError, match=sentence), start_workers(options):
            pass


def test_options_that_differ_from_the_usual_are_typed_again() -> None:
    assert WorkerOptions().typed == []
    assert WorkerOptions(jobs=2, backend="ray", gpus_per_job=0.25).typed == [
        *("--jobs", "2", "--backend", "ray", "--gpus-per-job", "0.25")
    ]
