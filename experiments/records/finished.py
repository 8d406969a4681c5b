"""Finished jobs of a command, kept in its folder: used again only where all that their results depend on is the same.

A job is a piece of work that depends on no other: a cell of a paper's table, the play of one controller on the
instances of one environment, a batch of runs of a search. Its record is one file, written whole, under a name that
follows from what is asked of it, so that several processes may work in one folder.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from envs.playing import RowProgress
from fl_core.base.errors import InputError, require
from fl_core.base.fields import check_types
from fl_core.base.files import digest, spelled_out, write_json
from fl_core.base.sealed import read_sealed, require_same, sealed
from fl_core.base.text import short
from fl_core.training.measured import adopt_choices, check_choices, executor_choices

FORMAT = 2
JOBS = "jobs"
"""Folder of a command's finished jobs, inside the folder of its results."""


@dataclass(frozen=True)
class _Measured:
    """What doing a job took, in its record."""

    rounds: int = 0
    seconds: float = 0.0
    executors: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """A piece of work, by what is asked of it.

    Attributes:
        stem: readable beginning of its key.
        asked: everything that its result depends on, version of the code among it, as JSON values.
        check: refuses results that no such job has, in a record that a stranger may have edited, with an `InputError`;
            takes the record and the file in words.
    """

    stem: str
    asked: Mapping[str, Any]
    check: Callable[[Mapping[str, Any], str], None] = field(default=lambda record, where: None, compare=False)

    @cached_property
    def key(self) -> str:
        """Name of its record: equal for equal work by the same code, and different for all other."""
        return f"{self.stem}__{digest(spelled_out(self.asked))[:10]}"


def check_record(job: Job, record: Mapping[str, Any], where: str) -> None:
    """Refuse a record with figures or results that no such job has.

    Args:
        job: of the record.
        record: as it was read.
        where: the file, for the message.

    Raises:
        InputError: one is missing, or of another type or range.
    """
    job.check(record, where)
    measured = _measured(record)
    check_types(measured, where)
    for name in ("rounds", "seconds"):
        value = getattr(measured, name)
        require(
            0 <= value < math.inf, f"{where}: {name} is {short(value)}, but it must be a finite number of at least 0."
        )
    check_choices(measured.executors, where)


def _measured(record: Mapping[str, Any]) -> _Measured:
    return _Measured(**{one.name: record[one.name] for one in fields(_Measured) if one.name in record})


class FinishedJobs:
    """Records of finished jobs, one sealed file each in a folder; without a folder nothing is kept.

    Attributes:
        count: jobs that are finished, of this command.
        seconds: time that those took which were found finished.
    """

    def __init__(self, folder: Path | None = None, keeps: bool = True) -> None:
        """Take the folder.

        Args:
            folder: is made with the first record.
            keeps: whether records are added to it.
        """
        self._folder, self._keeps = folder, keeps
        self.count, self.seconds = 0, 0.0

    def path(self, job: Job) -> Path:
        """Path of a job's record.

        Raises:
            ValueError: nothing is kept here.
        """
        if self._folder is None:
            raise ValueError("these jobs have no folder")
        return self._folder / f"{job.key}.json"

    def keep(self, job: Job, results: Mapping[str, Any]) -> None:
        """Write the results of a job, with everything that was asked of it and a digest over both.

        Raises:
            FileError: it cannot be written.
        """
        if self._folder is not None and self._keeps:
            write_json(self.path(job), sealed({"asked": spelled_out(job.asked), **results}, FORMAT))

    def read(self, job: Job) -> dict[str, Any]:
        """Read the record of a job.

        Raises:
            InputError: there is none, it is damaged or of an older version, it is of another job, or it holds results
                that no such job has.
        """
        path = self.path(job)
        record = read_sealed(path, FORMAT)
        require_same(record.get("asked"), job.asked, f"The record '{path}'")
        check_record(job, record, f"The file '{path}'")
        return record

    def find(self, job: Job) -> dict[str, Any] | None:
        """Find the record of a job; None where there is none, or `read` refuses it."""
        if self._folder is None or not self.path(job).exists():
            return None
        try:
            return self.read(job)
        except InputError:
            return None

    def once(self, job: Job, progress: RowProgress, work: Callable[[RowProgress], dict[str, Any]]) -> dict[str, Any]:
        """Return the results of a job that is finished, or do it and keep them.

        Which executor was measured to be the faster is kept with them: another one rounds differently, so jobs that are
        yet to be done take the one that an uninterrupted command would have taken.

        Args:
            job: what is to be done.
            progress: told of its rounds, also of those done long ago.
            work: does it; given what to tell of the rounds, returns JSON values.
        """
        found, began, done = self.recall(job, progress), time.monotonic(), 0
        if found is not None:
            return found

        def advance(rounds: int) -> None:
            nonlocal done
            done += rounds
            progress(rounds)

        results = work(advance)
        self.finish(job, results, done, time.monotonic() - began, executor_choices())
        return results

    def recall(self, job: Job, progress: RowProgress) -> dict[str, Any] | None:
        """Return the results of a job that is finished, with the executors that it was done by taken over, or None."""
        found = self.find(job)
        if found is not None:
            self.count += 1
            measured = _measured(found)
            adopt_choices(measured.executors)
            self.seconds += measured.seconds
            progress(measured.rounds)
        return found

    def finish(
        self, job: Job, results: Mapping[str, Any], rounds: int, seconds: float, executors: Mapping[str, Any]
    ) -> None:
        """Keep the results of a job that was just done.

        Args:
            job: that was done.
            results: JSON values.
            rounds: federated rounds that it took.
            seconds: that it took.
            executors: those that were measured to be the faster.

        Raises:
            FileError: they cannot be written.
        """
        measured = {"rounds": rounds, "seconds": round(seconds, 3), "executors": executors}
        self.keep(job, {**measured, **results})
        self.count += 1

    def drop(self) -> None:
        """Remove all records, once the command's results hold what they say."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
