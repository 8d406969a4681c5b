"""The environments of a command, each different one made once, and the runner of its jobs."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from typing_extensions import override

from envs import EnvCore, Setting
from envs.playing import rows_at_once
from experiments.workers.runner import Runner
from experiments.workers.serving import forgets_when_stale


class Environments:
    """Environments by setting and number of rows, made when they are first asked for.

    Single rows are kept to the end. Batches are kept for the setting that was asked for last alone: those of many
    settings together would fill the memory, so that whoever plays should play all of a setting in a row.

    Sent to another process they become that process's own, which its jobs share: data is read once per process.

    Attributes:
        runner: of the command's jobs; knows those that are done, which nobody plays again.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        """Make nothing yet; without a runner, jobs are done in this process and not kept."""
        self.runner = Runner() if runner is None else runner
        self._single: dict[Setting, EnvCore] = {}
        self._batches: dict[int, EnvCore] = {}
        self._latest: Setting | None = None

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return environments_of_process, ()

    def of(self, setting: Setting, rows: int = 1) -> EnvCore:
        """Find or make the environment of a setting; its episodes are over, or nobody needs them any more.

        Raises:
            InputError: the data, the method or the generator do not allow the setting.
        """
        if rows == 1:
            if setting not in self._single:
                self._single[setting] = EnvCore(setting)
            return self._single[setting]
        if setting != self._latest:
            self._latest, self._batches = setting, {}
        if rows not in self._batches:
            self._batches[rows] = EnvCore(setting, rows)
        return self._batches[rows]

    def rows_at_once(self, setting: Setting, wanted: int) -> int:
        """Compute how many of the wanted runs fit in memory as rows of one batch."""
        alike = (core for made, core in self._single.items() if _size(made) == _size(setting))
        return rows_at_once(next(alike, None) or self.of(setting), wanted)


@lru_cache(maxsize=1)
def environments_of_process() -> Environments:
    """Return the environments that the jobs of a worker share."""
    return Environments()


forgets_when_stale(environments_of_process.cache_clear)


def _size(setting: Setting) -> Hashable:
    """Return the settings that determine the memory of a batch."""
    own = setting.federation
    cohort = (own.clients, own.sampling, own.sampling_rate)
    return own.dataset, own.model, own.method, own.set, own.without, *cohort, setting.spec.generator
