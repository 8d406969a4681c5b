"""Progress bars with the time left, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from typing_extensions import override

from envs.playing import RowProgress
from experiments.workers.runner import Watch, Work


@contextmanager
def rounds_bar(total: int, what: str) -> Iterator[RowProgress]:
    """Show a bar that counts federated rounds.

    Args:
        total: rounds to do.
        what: shown in front.
    """
    with _bar(total, what) as bar:

        def advance(rounds: int) -> None:
            bar.update(rounds)

        yield advance


@contextmanager
def jobs_bar(total: int, what: str, unit: str = "round") -> Iterator[Watch]:
    """Show a bar that counts federated rounds, and beside it jobs, or jobs alone.

    Args:
        total: rounds or jobs to do.
        what: shown in front.
        unit: "round" or "job".
    """
    with _bar(total, what, unit) as bar:
        yield _JobsBar(bar)


class _JobsBar(Watch):
    """Watcher that moves a bar."""

    def __init__(self, bar: Any):
        super().__init__(bar.update if bar.unit == "round" else lambda _: None)
        self._bar, self._planned, self._done = bar, 0, 0

    @override
    def planned(self, count: int) -> None:
        self._planned += count
        self._show()

    @override
    def finished(self, work: Work) -> None:
        self._done += 1
        self._bar.update(self._bar.unit == "job")
        self._show()

    def _show(self) -> None:
        self._bar.set_postfix_str(f"{self._done} of {self._planned} jobs", refresh=False)


def _bar(total: int, what: str, unit: str = "round") -> Any:
    return tqdm(total=total, desc=what, unit=unit, file=sys.stderr, dynamic_ncols=True, mininterval=0.5)
