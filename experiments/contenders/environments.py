"""The environments of a command, each different one made once, and its finished jobs."""

from __future__ import annotations

from collections.abc import Hashable

from envs import EnvCore, Setting
from envs.playing import rows_at_once
from experiments.records.finished import FinishedJobs


class Environments:
    """Environments by setting and number of rows, made when they are first asked for.

    Single rows are kept to the end. Batches are kept for the setting that was asked for last alone: those of many
    settings together would fill the memory, so that whoever plays should play all of a setting in a row.

    Attributes:
        finished: jobs of the command that are done, which nobody plays again.
    """

    def __init__(self, finished: FinishedJobs | None = None) -> None:
        """Make nothing yet; without `finished`, jobs are not kept."""
        self.finished = FinishedJobs() if finished is None else finished
        self._single: dict[Setting, EnvCore] = {}
        self._batches: dict[int, EnvCore] = {}
        self._latest: Setting | None = None

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


def _size(setting: Setting) -> Hashable:
    """Return the settings that determine the memory of a batch."""
    own = setting.federation
    cohort = (own.clients, own.sampling, own.sampling_rate)
    return own.dataset, own.model, own.method, own.set, own.without, *cohort, setting.spec.generator
