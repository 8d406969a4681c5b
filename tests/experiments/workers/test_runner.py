"""Jobs on processes give what one process gives, whatever happens to their workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envs.playing import RowProgress
from experiments.records.finished import FinishedJobs, Job
from experiments.terminal import JobsFailed
from experiments.workers.backends import Backend, Processes
from experiments.workers.runner import Plan, Runner, Watch, Work
from fl_core.base.errors import FileError, InputError
from fl_core.base.sources import load_named
from fl_core.training.measured import executor_choices, measured
from tests.import_graph import ROOT


def square(number: int, progress: RowProgress) -> dict[str, Any]:
    progress(number)
    print(f"square of {number}")
    return {"square": number**2, "worker": os.getpid()}


def dying(times: int, place: Path, progress: RowProgress) -> dict[str, Any]:
    """Kill the worker, as often as asked for."""
    before = len(list(place.iterdir()))
    if before < times:
        (place / str(before)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": 0, "worker": os.getpid()}


def failing(error: Exception, progress: RowProgress) -> dict[str, Any]:
    raise error


def choosing(kind: str, place: Path, progress: RowProgress) -> dict[str, Any]:
    """Measure one executor to be the faster, while another worker measures the other one."""
    (place / kind).touch()
    _until(lambda: list(place.iterdir()), lambda found: len(found) == 2)
    return {"chosen": measured("shapes of this test", lambda: (kind, kind))[0]}


def work(number: int, call: Any = None) -> Work:
    return Work(Job(f"job-{number}", {"number": number}), call or partial(square, number), f"job {number}")


@pytest.fixture(scope="module")
def two() -> Iterator[Backend]:
    backend = Processes(2)
    yield backend
    backend.close()


class Counted(Watch):
    """Watcher that keeps what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        super().__init__(lambda rounds: self.heard.append(f"{rounds} rounds"))

    def finished(self, work: Work) -> None:
        self.heard.append(str(work))


def test_processes_give_what_this_process_gives(two: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    heard = Counted()
    results = Runner(backend=two).run([work(number) for number in range(6)], heard)
    assert [one["square"] for one in results] == [0, 1, 4, 9, 16, 25]
    assert [one["square"] for one in Runner().run([work(number) for number in range(6)], Watch())] == [
        0,
        1,
        4,
        9,
        16,
        25,
    ]
    workers = {one["worker"] for one in results}
    assert os.getpid() not in workers
    assert len(workers) <= 2  # each is kept for several jobs
    assert sorted(heard.heard) == sorted(f"{word}" for n in range(6) for word in (f"job {n}", f"{n} rounds"))
    assert capsys.readouterr().out.count("square of 3\n") == 2


def test_finished_jobs_are_not_repeated(two: Backend, tmp_path: Path) -> None:
    first = Runner(FinishedJobs(tmp_path), two).run([work(1), work(2)], Watch())
    again = Runner(FinishedJobs(tmp_path), two).run([work(1), work(2), work(3)], Watch())
    assert [one["worker"] for one in again[:2]] == [one["worker"] for one in first]
    here = Runner(FinishedJobs(tmp_path)).run([work(3)], Watch())
    assert here[0]["worker"] == again[2]["worker"] != os.getpid()


def test_a_job_whose_worker_dies_is_named_and_done_again(two: Backend, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"job 5: its worker died .*SIGKILL.*; the job is done again") as told:
        results = Runner(backend=two).run([work(5, partial(dying, 2, tmp_path)), work(6)], Watch())
    assert [one["square"] for one in results] == [0, 36]
    assert len(told) == 2


def test_a_job_that_many_workers_die_of_fails_alone(two: Backend, tmp_path: Path) -> None:
    place = tmp_path / "deaths"
    place.mkdir()
    finished = FinishedJobs(tmp_path / "jobs")
    with (
        pytest.warns(UserWarning, match="job 5"),
        pytest.raises(JobsFailed, match=r"1 of 3 jobs failed: job 5: 3 workers died of it.*SIGKILL.*memory"),
    ):
        Runner(finished, two).run([work(5, partial(dying, 9, place)), work(6), work(7)], Watch())
    assert finished.count == 2


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InputError("clients is 7, but it must be even."), "job 2: clients is 7, but it must be even"),
        (MemoryError("cannot allocate 7 GiB"), r"job 2: The memory does not suffice \(cannot allocate 7 GiB\); lower"),
    ],
)
def test_a_failed_job_is_told_in_a_sentence_and_the_others_go_on(
    error: Exception, told: str, here: bool, two: Backend, tmp_path: Path
) -> None:
    finished = FinishedJobs(tmp_path)
    with pytest.raises(JobsFailed, match=f"1 of 4 jobs failed: {told}"):
        Runner(finished, None if here else two).run(
            [work(1), work(2, partial(failing, error)), work(3), work(4)], Watch()
        )
    assert finished.count == 3
    assert not finished.path(work(2).job).exists()


def test_an_error_of_the_code_is_told_in_a_sentence_by_workers_and_raised_here(two: Backend) -> None:
    broken = [work(1, partial(failing, ValueError("no such thing")))]
    with pytest.raises(JobsFailed, match="job 1: ValueError: no such thing; without --jobs"):
        Runner(backend=two).run(broken, Watch())
    with pytest.raises(ValueError, match="no such thing"):
        Runner().run(broken, Watch())


@pytest.mark.parametrize("here", [True, False])
def test_a_full_disk_ends_everything(here: bool, two: Backend) -> None:
    error = FileError("no room is left for 'a.json'.")
    with pytest.raises(FileError, match="no room"):
        Runner(backend=None if here else two).run([work(1, partial(failing, error)), work(2)], Watch())


def summing(numbers: list[int]) -> Plan[int]:
    first = yield [work(number) for number in numbers]
    total = sum(one["square"] for one in first)
    [last] = yield [work(total)]
    return int(last["square"])


def test_plans_go_on_side_by_side_from_the_results_they_wait_for(two: Backend) -> None:
    plans = lambda: [summing([1, 2]), summing([3]), summing([])]  # noqa: E731
    assert Runner().run_plans(plans(), Watch()) == Runner(backend=two).run_plans(plans(), Watch()) == [25, 81, 0]


def test_a_plan_whose_job_fails_ends_and_the_others_do_not(two: Backend, tmp_path: Path) -> None:
    def broken() -> Plan[int]:
        yield [work(1, partial(failing, InputError("it fails.")))]
        raise AssertionError("goes on without the results")

    for backend in (None, two):
        finished = FinishedJobs(tmp_path / str(backend is None))
        with pytest.raises(JobsFailed, match="1 of 3 jobs failed: job 1: it fails"):
            Runner(finished, backend).run_plans([broken(), summing([2])], Watch())
        assert finished.count == 2


def test_results_that_are_compared_come_from_one_executor(two: Backend, tmp_path: Path) -> None:
    kinds = ["sequential", "vectorized"]
    works = [work(number, partial(choosing, kind, tmp_path)) for number, kind in enumerate(kinds)]
    chosen = {one["chosen"] for one in Runner(backend=two).run(works, Watch())}
    assert chosen == {executor_choices()["shapes of this test"][0]}
    assert {one["chosen"] for one in Runner(backend=two).run(works, Watch())} == chosen


def test_what_comes_from_a_users_file_goes_along_by_value(two: Backend, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    said = 7\n")
    found, _ = load_named(str(tmp_path / "mine.py"), "Mine", "test")
    [result] = Runner(backend=two).run([work(1, partial(_said, found))], Watch())
    assert result == {"said": 7}


def _said(found: Any, progress: RowProgress) -> dict[str, Any]:
    return {"said": found().said}


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\nfrom functools import partial\n"
        "from experiments.workers.backends import Processes\n"
        "from experiments.workers.runner import Runner, Watch, Work\n"
        "from experiments.records.finished import Job\n"
        "def wait(place, number, progress):\n    open(f'{place}/{os.getpid()}.pid', 'w').close()\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        f"    works = [Work(Job(str(n), {{'n': n}}), partial(wait, {str(tmp_path)!r}, n)) for n in range(2)]\n"
        "    Runner(backend=Processes(2)).run(works, Watch())\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    workers = _until(lambda: [int(one.stem) for one in tmp_path.glob("*.pid")], lambda found: len(found) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _until(lambda: [one for one in workers if _lives(one)], lambda found: not found)


def _until(look: Any, enough: Any) -> Any:
    found = look()
    for _ in range(1200):
        if enough(found):
            return found
        time.sleep(0.1)
        found = look()
    raise AssertionError(f"still {found} after two minutes")


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
