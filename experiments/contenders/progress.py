"""Progress bars with the time left, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from envs.playing import RowProgress


@contextmanager
def rounds_bar(total: int, what: str) -> Iterator[RowProgress]:
    """Show a bar that counts federated rounds.

    Args:
        total: rounds to do.
        what: shown in front.
    """
    with tqdm(total=total, desc=what, unit="round", file=sys.stderr, dynamic_ncols=True, mininterval=0.5) as bar:

        def advance(rounds: int) -> None:
            bar.update(rounds)

        yield advance
