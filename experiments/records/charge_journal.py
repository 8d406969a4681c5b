"""`charges.jsonl` of a run: every round's charge, on disk before the round touches any data.

`ledger.json` is written every few seconds; what a run that is killed has released since then is in this journal alone.
Only `dpilot run` keeps one: comparisons, trainings and searches simulate runs on clients of their own.

The first line describes the run, each further one is a round's charges; each has the SHA-256 of itself and of the line
before, so that a changed, missing or exchanged line shows. A last line that is not whole belongs to a round that has
not run, because a round waits for its line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fl_core.base.bounds import is_number
from fl_core.base.errors import InputError, require
from fl_core.base.files import json_number, spelled_out
from fl_core.base.sealed import dpilot_version, first_difference
from fl_core.privacy.releases import Charge
from fl_core.run.charging import Books

FORMAT = 1
FILE = "charges.jsonl"
_BUDGET = ("epsilon", "delta", "sampling_rate", "rounds", "claim", "adjacency", "adaptive")
_SEAL = "sha256"

Row = list[Any]
"""A charge as JSON values, as in `Ledger.state_dict`: round from 0, and name, σ and class of each release."""


@dataclass(frozen=True)
class Journal:
    """A journal as read back.

    Attributes:
        run: what does not change in a run, as JSON values.
        rounds: charges by the book's name, of each round in order.
        seal: SHA-256 of the last line.
        size: bytes up to the end of the last whole line.
    """

    run: dict[str, Any]
    rounds: list[dict[str, Row]]
    seal: str
    size: int

    def of(self, book: str) -> list[Row]:
        """Collect the charges of one book; one of a client's own budget ends where that is spent."""
        return [charges[book] for charges in self.rounds if book in charges]


def describe(facts: Mapping[str, Any], books: Books) -> dict[str, Any]:
    """Describe what does not change in a run: its facts and the budgets of its books, as JSON values."""
    budgets = {}
    for name, ledger in books.by_name().items():
        state = ledger.state_dict()
        budgets[name] = {field: state[field] for field in _BUDGET}
    return {"facts": spelled_out(facts), "budgets": budgets}


class ChargeJournal:
    """Keeps a run's journal; its `charge` is what a `Charging` calls."""

    def __init__(self, path: Path, rounds: Sequence[dict[str, Row]], seal: str) -> None:
        """Go on after these rounds, the last line of which has this seal."""
        self._path, self._rounds, self._seal = path, list(rounds), seal

    @classmethod
    def start(cls, folder: Path, run: Mapping[str, Any]) -> Self:
        """Begin the journal of a new run, described as by `describe`.

        Raises:
            InputError: it cannot be written, or the folder has one.
        """
        path = folder / FILE
        require(not path.exists(), f"The folder '{folder}' has a {FILE} already, so it is another run's.")
        journal = cls(path, (), "")
        journal._append({"format": FORMAT, "dpilot": dpilot_version(), **run}, "The journal")
        _sync_folder(folder)
        return journal

    @classmethod
    def resume(cls, folder: Path, run: Mapping[str, Any], books: Books) -> Self:
        """Go on with the journal of a run whose books stand where its state was saved.

        The rounds that it holds beyond them were released already, so their charges must come out the same again.

        Raises:
            InputError: there is none, it was changed, is another run's, or is behind the books.
        """
        path = folder / FILE
        journal = read_journal(path)
        require_same_run(path, journal.run, run, "the run to go on")
        require_prefix(books, journal, path, "the saved state")
        os.truncate(path, journal.size)  # of a round that has not run
        return cls(path, journal.rounds, journal.seal)

    def charge(self, row: int, charges: Mapping[str, Charge]) -> None:
        """Put a round's charges on disk, unless they are there already.

        Args:
            row: of the batch; a journal is of one run.
            charges: of the round, by the book's name.

        Raises:
            InputError: the round was charged otherwise before, a round is left out, or the disk refuses.
        """
        require(row == 0, f"row is {row}, but a journal of charges is kept for a batch of one run.")
        rows = {name: charge.as_row() for name, charge in charges.items()}
        (index,) = {charge.round for charge in charges.values()}
        if index < len(self._rounds):
            require(
                self._rounds[index] == rows,
                f"Round {index + 1} was released before with the charges {_words(self._rounds[index])}, but would now "
                f"be released with {_words(rows)}; start anew.",
            )
            return
        require(index == len(self._rounds), f"Round {index + 1} is charged, but the last one was {len(self._rounds)}.")
        self._append({"charges": rows}, f"The charge of round {index + 1}")
        self._rounds.append(rows)

    def _append(self, content: Mapping[str, Any], what: str) -> None:
        """Write a line and wait until it is on disk."""
        seal = _seal_of(self._seal, content)
        line = json.dumps({**content, _SEAL: seal}, allow_nan=False) + "\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                written = file.write(line.encode())
                os.fsync(file.fileno())
            if written != len(line.encode()):
                raise OSError("No space left on device")
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{what} could not be written to '{self._path}': {reason}.") from error
        self._seal = seal


def read_journal(path: Path) -> Journal:
    """Read a journal.

    Raises:
        InputError: it is missing, unreadable, of another format, or was changed since it was written.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"The file '{path}' could not be read: {error.strerror or error}.") from error
    size = text.rfind(b"\n") + 1
    seal, lines = "", []
    for number, line in enumerate(text[:size].splitlines(), start=1):
        content = _parse(line)
        known = content.pop(_SEAL, None)
        seal = _seal_of(seal, content)
        require(known == seal, f"The file '{path}' was changed since it was written: line {number} does not fit.")
        lines.append(content)
    require(bool(lines), f"The file '{path}' is empty, so it is not the journal of a run.")
    head, *rest = lines
    found = head.pop("format", None)
    require(found == FORMAT, f"The file '{path}' has format {found}, but this version of dpilot reads {FORMAT}.")
    head.pop("dpilot", None)
    for number, one in enumerate(rest, start=2):
        require(_are_charges(one.get("charges")), f"The file '{path}' holds no charges of a round in line {number}.")
    return Journal(head, [one["charges"] for one in rest], seal, size)


def _are_charges(found: Any) -> bool:
    """Return True for a round's charges by book, each `[round, [[name, σ, class], ...]]`."""
    return isinstance(found, dict) and all(
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[1], list)
        and all(isinstance(one, list) and len(one) == 3 and is_number(json_number(one[1])) for one in row[1])
        for row in found.values()
    )


def require_same_run(path: Path, run: Mapping[str, Any], here: Mapping[str, Any], what: str) -> None:
    """Refuse a journal of another run.

    Args:
        path: of the journal.
        run: described in it.
        here: described by what it lies beside.
        what: the latter, for the message: "ledger.json".
    """
    found = first_difference(run, here)
    if found is not None:
        name, known, mine = found
        raise InputError(f"The file '{path}' is of another run: its {name} is {known}, but in {what} it is {mine}.")


def require_prefix(books: Books, journal: Journal, path: Path, what: str) -> None:
    """Refuse books that are ahead of their journal, or that it contradicts.

    Args:
        books: of the run.
        journal: of the same run.
        path: of the journal.
        what: where the books are, for the message: "ledger.json".
    """
    for name, ledger in books.by_name().items():
        own, known = ledger.rows, journal.of(name)
        require(
            len(own) <= len(known),
            f"The file '{path}' holds {len(known)} charges of the {name}, but {what} holds {len(own)}.",
        )
        for index, (mine, theirs) in enumerate(zip(own, known, strict=False)):
            require(mine == theirs, f"The file '{path}' and {what} differ in the {name}'s charge of round {index + 1}.")


def _parse(line: bytes) -> dict[str, Any]:
    """Parse a line; what is no object of JSON becomes an empty one, which no seal fits."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _seal_of(before: str, content: Mapping[str, Any]) -> str:
    """Compute the seal of a line from the one before it."""
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def _words(rows: Mapping[str, Row]) -> str:
    """Write a round's charges for a message."""
    texts = [f"{name} {release} {sigma}" for name, (_, all_) in rows.items() for release, sigma, _ in all_]
    return ", ".join(texts)


def _sync_folder(folder: Path) -> None:
    """Put a folder's entries on disk, without which a new file may be lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
