"""Ray and Dask give what one process gives, and lose no job when a node or a worker is killed on the way.

Run with `pytest -m long tests/experiments/workers` where `dpilot[cluster]` is installed; about three minutes.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from envs import EnvCore, Setting
from envs.playing import RowProgress, run_to_the_end
from experiments.records.finished import FinishedJobs, Job
from experiments.workers.options import WorkerOptions
from experiments.workers.runner import Runner, Watch, Work
from experiments.workers.starting import start_workers
from fl_core.base.errors import InputError
from fl_core.run.config import RunSettings
from policies import FixedClip

pytestmark = pytest.mark.long
SETTING = Setting.of(task="digits", rounds=6, clients=10, delta=0.05, knobs="clip_norm", executor="vectorized")


def play(seed: int, place: Path, node: Callable[[], str], progress: RowProgress) -> dict[str, Any]:
    """Play a run; where it begins is left as a file, so that somebody may kill that node."""
    (place / f"{node()}__{seed}").touch()
    time.sleep(3)
    core = EnvCore(SETTING)
    run_to_the_end(core, FixedClip.for_env(core, clip_norm=0.5), [RunSettings(seed=seed)], progress)
    return {"history": core.history[0], "model": core.federation.state.server.tolist()}


def works(place: Path, node: Callable[[], str], count: int = 6) -> list[Work]:
    return [
        Work(Job(f"play-{seed}", {"seed": seed}), partial(play, seed, place, node), f"seed {seed}")
        for seed in range(count)
    ]


def here() -> str:
    return "here"


def ray_node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def process() -> str:
    return str(os.getpid())


@pytest.fixture
def alone(tmp_path: Path) -> list[dict[str, Any]]:
    """Results of one process, with one thread as workers have it: more of them change the last bits of test losses."""
    (tmp_path / "alone").mkdir()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return Runner().run(works(tmp_path / "alone", here), Watch())
    finally:
        torch.set_num_threads(threads)


def killing(place: Path, at: Callable[[str], bool], kill: Callable[[str], object]) -> threading.Thread:
    """Kill the first node or process that begins a job and fits, half a second later."""

    def wait() -> None:
        found: list[str] = []
        while not found:
            time.sleep(0.1)
            found = [name for path in place.iterdir() if at(name := path.name.partition("__")[0])]
        time.sleep(0.5)
        kill(found[0])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def two_nodes() -> Iterator[tuple[Any, Any]]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other = cluster.add_node(num_cpus=1)
    yield cluster, other
    cluster.shutdown()


def test_ray_goes_on_where_one_of_two_nodes_is_killed(
    two_nodes: tuple[Any, Any], alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    cluster, other = two_nodes
    place, finished = tmp_path / "ray", FinishedJobs(tmp_path / "jobs")
    place.mkdir()
    with start_workers(WorkerOptions(backend="ray", address=cluster.address)) as backend:
        assert backend is not None
        assert backend.cores == 2
        killer = killing(place, other.node_id.__eq__, lambda _: cluster.remove_node(other, allow_graceful=False))
        with pytest.warns(UserWarning, match=r"seed \d: its worker died") as told:
            results = Runner(finished, backend).run(works(place, ray_node), Watch())
        killer.join()
    print(*(one.message for one in told), sep="\n")
    started = [path.name.partition("__") for path in place.iterdir()]
    assert len({node for node, _, _ in started}) == 2
    died = {seed for node, _, seed in started if node == other.node_id}
    print(f"seeds that had begun on the killed node: {sorted(died)}; on the other: {len(started) - len(died)}")
    assert results == alone
    assert finished.count == 6


def test_ray_hands_out_the_gpus_that_there_are(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
    options = partial(WorkerOptions, backend="ray", address=cluster.address)
    try:
        with pytest.raises(InputError, match="gpus-per-job is 2, but no node of the cluster has more than 1"):
            start_workers(options(gpus_per_job=2)).__enter__()
        with start_workers(options(gpus_per_job=0.25)) as backend:
            [result] = Runner(backend=backend).run([Work(Job("gpus", {}), _gpus)], Watch())
        assert result == {"gpus": 0.25, "visible": "0"}
    finally:
        cluster.shutdown()


def _gpus(progress: RowProgress) -> dict[str, Any]:
    import ray

    given = ray.get_runtime_context().get_assigned_resources()
    return {"gpus": given.get("GPU", 0), "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_cluster_of_this_machine_loses_no_job_of_a_killed_worker(
    backend: str, alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("ray" if backend == "ray" else "distributed")
    place, finished = tmp_path / backend, FinishedJobs(tmp_path / "jobs")
    place.mkdir()
    with start_workers(WorkerOptions(backend=backend, jobs=2)) as started:
        killer = killing(place, str.isdecimal, lambda name: os.kill(int(name), signal.SIGKILL))
        with pytest.warns(UserWarning, match=r"seed \d: its worker died") as told:
            results = Runner(finished, started).run(works(place, process), Watch())
        killer.join()
    print(*(one.message for one in told), sep="\n")
    assert results == alone
    assert finished.count == 6


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_what_listens_but_is_no_cluster_is_given_up_after_some_seconds(backend: str) -> None:
    pytest.importorskip("ray" if backend == "ray" else "distributed")
    with socket.create_server(("127.0.0.1", 0)) as listening, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match=f"address is '{address}', but no {backend} cluster answers there"):
            start_workers(WorkerOptions(backend=backend, address=address)).__enter__()
