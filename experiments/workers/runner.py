"""Runner of a command's jobs: what is finished is found, the rest is done here or by workers, and all of it is kept.

A plan is a generator that yields jobs, all of which may run at the same time, is sent their results in that order, and
returns what follows from them: a search is one, whose next candidates depend on the scores of the last.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from envs.playing import RowProgress
from experiments.records.finished import FinishedJobs, Job
from experiments.terminal import JobsFailed, shortage
from experiments.workers.backends import Backend, WorkerDied
from experiments.workers.serving import Call, Outcome, packed, told_failure
from fl_core.base.errors import FileError, InputError
from fl_core.training.measured import adopt_choices

T = TypeVar("T")
ATTEMPTS = 3
"""Workers that may die of a job before it counts as failed."""


@dataclass(frozen=True)
class Work:
    """A job and what does it.

    Attributes:
        job: by what is asked of it.
        call: does it; what it holds is sent to the worker.
        name: in messages.
    """

    job: Job
    call: Call
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.job.key


Plan = Generator[Sequence[Work], list[dict[str, Any]], T]


class Watch:
    """Watcher of jobs; as it stands, it is told of rounds alone."""

    def __init__(self, advance: RowProgress = lambda _: None):
        """Take whom to tell of rounds."""
        self._advance = advance

    def planned(self, count: int) -> None:
        """Hear of more jobs to be done."""

    def started(self, work: Work) -> None:
        """Hear that a job begins."""

    def advanced(self, work: Work, rounds: int) -> None:
        """Hear of rounds of a job; of one that a worker does, when it is done."""
        self._advance(rounds)

    def finished(self, work: Work) -> None:
        """Hear that a job is done and kept."""

    def failed(self, work: Work) -> None:
        """Hear that a job has failed."""


class Runner:
    """Runs jobs in this process, or on a backend.

    A job that fails leaves the others to go on; in the end all failures are raised together. Files that cannot be
    written end everything at once.

    Attributes:
        finished: jobs that are done.
    """

    def __init__(self, finished: FinishedJobs | None = None, backend: Backend | None = None, alike: bool = True):
        """Take what is finished, and where to run the rest.

        Args:
            finished: records of jobs; without them, nothing is kept.
            backend: None for this process.
            alike: whether a job is done again whose worker has measured another executor to be the faster than that of
                an earlier job on the same shapes: results that are compared with each other are then of one executor.
        """
        self.finished = FinishedJobs() if finished is None else finished
        self._backend, self._alike = backend, alike

    def run(self, works: Sequence[Work], watch: Watch | RowProgress) -> list[dict[str, Any]]:
        """Do all jobs and return their results in order; raises as `run_plans`."""
        [results] = self.run_plans([_at_once(works)], watch)
        return results

    def run_plans(self, plans: Sequence[Plan[T]], watch: Watch | RowProgress) -> list[T]:
        """Run plans to their ends: one after another in this process, side by side on a backend.

        Raises:
            JobsFailed: jobs failed; all that do not depend on them are done.
            FileError, OSError: a file cannot be written.
        """
        watched = watch if isinstance(watch, Watch) else Watch(watch)
        if self._backend is None:
            return _run_here(plans, self.finished, watched)
        return _Sweep(plans, self.finished, self._backend, self._alike, watched).run()


def _at_once(works: Sequence[Work]) -> Plan[list[dict[str, Any]]]:
    return (yield works)


def _raise_failures(failures: Sequence[str], done: int) -> None:
    if failures:
        more = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
        told = "; ".join(one.rstrip(".") for one in failures[:3])
        raise JobsFailed(f"{len(failures)} of {done + len(failures)} jobs failed: {told}{more}.")


# ---------------------------------------------------------------- in this process


def _run_here(plans: Sequence[Plan[T]], finished: FinishedJobs, watch: Watch) -> list[T]:
    ends, failures, done = list[T](), list[str](), 0

    def do(work: Work) -> dict[str, Any] | None:
        nonlocal done
        watch.started(work)
        try:
            results = finished.once(work.job, lambda rounds: watch.advanced(work, rounds), work.call)
        except (FileError, OSError):
            raise
        except Exception as error:
            if not isinstance(error, InputError) and shortage(error) is None:
                raise
            failures.append(f"{work}: {told_failure(error)}")
            watch.failed(work)
            return None
        done += 1
        watch.finished(work)
        return results

    for plan in plans:
        try:
            works = next(plan)
            while True:
                watch.planned(len(works))
                results = [do(work) for work in works]
                if None in results:
                    plan.close()
                    break
                works = plan.send([one for one in results if one is not None])
        except StopIteration as end:
            ends.append(end.value)
    _raise_failures(failures, done)
    return ends


# ---------------------------------------------------------------- by workers


@dataclass
class _Group(Generic[T]):
    """The jobs that a plan has yielded last."""

    plan: Plan[T]
    results: list[dict[str, Any] | None] = field(default_factory=list)
    missing: int = 0
    end: T | None = None

    def proceed(self) -> Sequence[Work]:
        """Send the plan the results of its jobs, all of which are there; returns its next jobs."""
        return self.plan.send([one for one in self.results if one is not None])


@dataclass
class _Task:
    """A job to be done by a worker, and how many have died of it."""

    group: _Group[Any]
    place: int
    work: Work
    deaths: int = 0


class _Sweep(Generic[T]):
    def __init__(self, plans: Sequence[Plan[T]], finished: FinishedJobs, backend: Backend, alike: bool, watch: Watch):
        self._groups = [_Group(plan) for plan in plans]
        self._finished, self._backend, self._alike, self._watch = finished, backend, alike, watch
        self._waiting: deque[_Task] = deque()
        self._running: dict[Future[Any], _Task] = {}
        self._failures: list[str] = []
        self._done = 0

    def run(self) -> list[T]:
        for group in self._groups:
            self._advance(group, partial(next, group.plan))
        while self._waiting or self._running:
            while self._waiting and len(self._running) < self._backend.width:
                task = self._waiting.popleft()
                self._running[self._backend.submit(packed(task.work.call))] = task
                self._watch.started(task.work)
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                self._settle(self._running.pop(future), future)
        _raise_failures(self._failures, self._done)
        return [group.end for group in self._groups]  # type: ignore[misc]

    def _advance(self, group: _Group[T], step: Callable[[], Sequence[Work]]) -> None:
        """Let a plan take its next step, until it waits for jobs that are not finished, or ends."""
        try:
            works = step()
            self._watch.planned(len(works))
        except StopIteration as end:
            group.end = end.value
            return
        group.results = [self._recalled(work) for work in works]
        tasks = [_Task(group, place, work) for place, work in enumerate(works) if group.results[place] is None]
        group.missing = len(tasks)
        self._waiting.extend(tasks)
        if not tasks:
            self._advance(group, group.proceed)

    def _recalled(self, work: Work) -> dict[str, Any] | None:
        found = self._finished.recall(work.job, lambda rounds: self._watch.advanced(work, rounds))
        if found is not None:
            self._done += 1
            self._watch.finished(work)
        return found

    def _settle(self, task: _Task, future: Future[Any]) -> None:
        try:
            outcome = self._backend.outcome(future)
        except WorkerDied as death:
            self._mourn(task, death)
            return
        if outcome.printed:
            print(outcome.printed, end="")
        for warning in outcome.warned:
            warnings.warn(warning, stacklevel=2)
        if outcome.disk is not None:
            raise outcome.disk
        if outcome.results is None:
            self._fail(task, outcome.failure)
        elif adopt_choices(outcome.executors) and self._alike:
            self._waiting.appendleft(task)
        else:
            self._keep(task, outcome, outcome.results)

    def _mourn(self, task: _Task, death: WorkerDied) -> None:
        """Tell of a worker's death, and do its job again unless too many have died of it."""
        task.deaths += 1
        if task.deaths == ATTEMPTS:
            self._fail(task, f"{ATTEMPTS} workers died of it, the last one because {death}; see if memory suffices.")
            return
        warnings.warn(f"{task.work}: its worker died ({death}); the job is done again.", stacklevel=2)
        self._waiting.appendleft(task)

    def _fail(self, task: _Task, failure: str) -> None:
        self._failures.append(f"{task.work}: {failure}")
        self._watch.failed(task.work)
        print(f"dpilot: {task.work}: {failure}", file=sys.stderr)

    def _keep(self, task: _Task, outcome: Outcome, results: dict[str, Any]) -> None:
        """Keep the results of a job, and go on with its plan where they were the last that it waits for."""
        self._finished.finish(task.work.job, results, outcome.rounds, outcome.seconds, outcome.executors)
        self._done += 1
        self._watch.advanced(task.work, outcome.rounds)
        self._watch.finished(task.work)
        group = task.group
        group.results[task.place] = results
        group.missing -= 1
        if not group.missing:
            self._advance(group, group.proceed)
