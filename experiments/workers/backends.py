"""Backends: where jobs run, each on a library's own scheduler, which is handed jobs and asked for dead workers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future
from functools import partial
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import TerminatedWorkerError
from typing_extensions import override

from experiments.workers.gpus import gpu_seats
from experiments.workers.serving import Outcome, serve
from fl_core.base.errors import InputError, first_line, require
from fl_core.base.processes import follow_parent, process_context

ANSWER_SECONDS = 10
"""A cluster that has not answered for so long is taken not to be there."""


class WorkerDied(Exception):
    """A worker ended before its job had; the message says where and how."""


class Backend(ABC):
    """Scheduler of packed jobs.

    Attributes:
        width: jobs that are handed in at a time; infinite where the scheduler has a queue of its own.
        cores: jobs that run at a time, as far as is known when it starts, for estimates of time.
    """

    width: float = float("inf")
    cores: int = 1

    @abstractmethod
    def submit(self, content: bytes) -> Future[Any]:
        """Hand in a job that `serving.packed` has packed."""

    @abstractmethod
    def outcome(self, future: Future[Any]) -> Outcome:
        """Return the outcome of a job that is done.

        Raises:
            WorkerDied: its worker ended first.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers, what they are doing included."""


class Processes(Backend):
    """Processes of this machine, started afresh and kept for several jobs each; they end with this one."""

    def __init__(self, jobs: int | None, gpus_per_job: float = 0.0):
        """Prepare for so many jobs side by side; None takes one, or all that the GPUs have room for.

        Raises:
            InputError: a job is to have more GPUs than there are.
        """
        self._seats = gpu_seats(gpus_per_job) if gpus_per_job else []
        self.width = self.cores = min(jobs or len(self._seats), len(self._seats)) if gpus_per_job else jobs or 1
        self._idle: list[Any] = []
        self._busy: dict[Future[Any], Any] = {}
        self._seat_of: dict[Any, str] = {}

    @override
    def submit(self, content: bytes) -> Future[Any]:
        # A pool of one process each: where one dies, it is known which job it had, and the others go on.
        pool = self._idle.pop() if self._idle else self._new()
        future: Future[Any] = pool.submit(serve, content)
        self._busy[future] = pool
        return future

    def _new(self) -> Any:
        context = process_context("experiments.workers.serving")
        seat = self._seats.pop(0) if self._seats else None
        pool = ProcessPoolExecutor(1, context=context, initializer=_begin, initargs=(seat,))
        if seat is not None:
            self._seat_of[pool] = seat
        return pool

    @override
    def outcome(self, future: Future[Any]) -> Outcome:
        pool = self._busy.pop(future)
        try:
            found: Outcome = future.result()
        except TerminatedWorkerError as error:
            pool.shutdown(wait=False, kill_workers=True)
            if pool in self._seat_of:
                self._seats.append(self._seat_of.pop(pool))
            status = str(error).partition("are {")[2].partition("}")[0]
            raise WorkerDied(f"a process of this machine ended with {status or 'an unknown status'}") from error
        self._idle.append(pool)
        return found

    @override
    def close(self) -> None:
        for pool in [*self._idle, *self._busy.values()]:
            pool.shutdown(wait=True, kill_workers=True)


def _begin(seat: str | None) -> None:
    """Begin a worker that sees these GPUs alone, or all of them."""
    follow_parent()
    if seat is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = seat


class Ray(Backend):
    """Tasks of a Ray cluster; without an address of one that runs on this machine as long as the command."""

    def __init__(self, address: str, jobs: int | None, gpus_per_job: float):
        import ray
        from ray.exceptions import RayError, RayTaskError

        self._ray, self._error, self._of_job = ray, RayError, RayTaskError
        known = address or os.environ.get("RAY_ADDRESS", "")
        local = {} if known else {"num_cpus": jobs, "include_dashboard": False}
        try:
            ray.init(address=known or "local", log_to_driver=False, logging_level="ERROR", **local)
        except (ConnectionError, RayError, RuntimeError, ValueError) as error:
            raise _silent("ray", known, error) from error
        try:
            self._require_gpus(gpus_per_job)
        except InputError:
            ray.shutdown()
            raise
        self.width = jobs or self.width
        self.cores = jobs or int(ray.cluster_resources().get("CPU", 1))
        # Deaths are told and tried again here, alike for every backend.
        self._task = ray.remote(serve).options(num_cpus=1, num_gpus=gpus_per_job, max_retries=0)

    def _require_gpus(self, gpus_per_job: float) -> None:
        most = max(one["Resources"].get("GPU", 0) for one in self._ray.nodes() if one["Alive"])
        require(
            gpus_per_job <= most,
            f"gpus-per-job is {gpus_per_job:g}, but no node of the cluster has more than {most:g}.",
        )

    @override
    def submit(self, content: bytes) -> Future[Any]:
        future: Future[Any] = self._task.remote(content).future()
        return future

    @override
    def outcome(self, future: Future[Any]) -> Outcome:
        try:
            found: Outcome = future.result()
        except self._of_job as error:
            return Outcome(failure=f"Ray could not run it: {first_line(error.cause)}.")
        except self._error as error:
            first = ". ".join(str(error).split("\n")[0].split(". ")[:2])
            raise WorkerDied(f"Ray reports {type(error).__name__}: {first}") from error
        return found

    @override
    def close(self) -> None:
        self._ray.shutdown()


class Dask(Backend):
    """Tasks of a Dask cluster; without an address of one that runs on this machine as long as the command."""

    def __init__(self, address: str, jobs: int | None):
        import dask
        from distributed import Client, KilledWorker, LocalCluster

        self._killed = KilledWorker
        if address:
            try:
                self._cluster, self._client = None, Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
            except (OSError, ValueError) as error:
                raise _silent("dask", address, error) from error
        else:
            # Deaths are told and tried again here, alike for every backend.
            dask.config.set({"distributed.scheduler.allowed-failures": 0})
            workers = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
            self._cluster = LocalCluster(**workers, silence_logs="CRITICAL")
            self._client = Client(self._cluster, set_as_default=False)
        self.width = jobs or self.width
        self.cores = jobs or max(1, len(self._client.scheduler_info(n_workers=-1)["workers"]))
        self._submit = partial(self._client.get_executor(pure=False, retries=0).submit, serve)

    @override
    def submit(self, content: bytes) -> Future[Any]:
        future: Future[Any] = self._submit(content)
        return future

    @override
    def outcome(self, future: Future[Any]) -> Outcome:
        try:
            found: Outcome = future.result()
        except self._killed as error:
            raise WorkerDied(f"Dask reports the death of worker {error.last_worker.address}") from error
        except Exception as error:  # such as that of a worker that cannot import this project
            return Outcome(failure=f"Dask could not run it: {type(error).__name__}: {first_line(error)}.")
        return found

    @override
    def close(self) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _silent(backend: str, address: str, error: Exception) -> InputError:
    """Make the error for a cluster that does not answer, or answers otherwise than one of this kind."""
    where = f"address is '{address}', but no {backend} cluster answers there" if address else f"{backend} did not start"
    return InputError(f"{where} ({first_line(error)}).")
