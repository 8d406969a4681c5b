"""Options that say where the jobs of a command run; results are the same everywhere."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, fields
from typing import Annotated

from fl_core.base.bounds import Bounds, count
from fl_core.base.errors import require, require_name
from fl_core.run.choices import one_of

BACKENDS = {
    "processes": "processes of this machine",
    "ray": "a Ray cluster, or Ray on this machine",
    "dask": "a Dask cluster, or Dask on this machine",
}
_MODULES = {"ray": "ray", "dask": "distributed"}
JOBS = count(1, 100_000, "a command has no more jobs")
GPUS = Bounds(0, 1024, "no machine has more")


@dataclass(frozen=True)
class WorkerOptions:
    """Where jobs run."""

    jobs: int | None = None
    """Jobs side by side, one thread each; by default one, or what the cluster or the GPUs have room for."""
    backend: Annotated[str, one_of(BACKENDS)] = "processes"
    """Where jobs run: processes of this machine, or a cluster of ray or dask."""
    address: str = ""
    """Address of the cluster, as HOST:PORT; by default one that is started on this machine for this command (ray: where
    RAY_ADDRESS names none)."""
    gpus_per_job: float = 0.0
    """GPUs, or share of one, that each job is given; not by dask."""

    @property
    def typed(self) -> list[str]:
        """The options as typed, those with their defaults left out."""
        return [
            word
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
            for word in (f"--{one.name.replace('_', '-')}", str(value))
        ]

    def require_none(self, one: str, several: str) -> None:
        """Refuse options of workers beside a single job, which runs in this process.

        Args:
            one: the job, in words.
            several: option that asks for more of them.

        Raises:
            InputError: there are some.
        """
        require(
            self == WorkerOptions(),
            f"{' '.join(self.typed)} is given, but there is one {one}, in this process; add {several}.",
        )

    def check(self) -> None:
        """Refuse values that are not allowed together, or a backend that is not installed.

        Raises:
            InputError: one of them.
        """
        require_name("backend", self.backend, BACKENDS)
        if self.jobs is not None:
            JOBS.check("jobs", self.jobs)
        GPUS.check("gpus-per-job", self.gpus_per_job)
        whole = self.gpus_per_job <= 1 or self.gpus_per_job == int(self.gpus_per_job)
        require(whole, f"gpus-per-job is {self.gpus_per_job:g}, but above 1 it must be a whole number.")
        require(
            self.backend != "dask" or not self.gpus_per_job,
            f"gpus-per-job is {self.gpus_per_job:g}, but backend dask hands out no GPUs; take processes or ray.",
        )
        require(
            self.backend != "processes" or not self.address,
            f"address is '{self.address}', but backend processes has none; add --backend ray or dask.",
        )
        module = _MODULES.get(self.backend)
        require(
            module is None or importlib.util.find_spec(module) is not None,
            f"backend is {self.backend}, which is not installed; `pip install dpilot[cluster]` adds it.",
        )
