"""Records of finished cells: used again only where everything they say of their run is what is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.papers.cells import Cell
from experiments.records.finished import FORMAT, check_record
from fl_core.base.errors import InputError, require
from fl_core.base.sealed import first_difference, read_sealed


def read_record(cell: Cell, folder: Path) -> dict[str, Any]:
    """Read the record of a cell.

    Raises:
        InputError: there is none, it is damaged or of an older version, or it is of another run than the cell.
    """
    return cell.records(folder).read(cell.job)


def find_record(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """Find the record of a cell; None where there is none, or `read_record` refuses it."""
    if not cell.path(folder).exists():
        return None
    try:
        return read_record(cell, folder)
    except InputError:
        return None


def kept(cells: Sequence[Cell], folder: Path, versions: Sequence[str]) -> list[Cell]:
    """Replace cells that only other code has finished, and that are to be kept, by those of that code.

    Args:
        cells: of this code.
        folder: of the table.
        versions: of the code, whose finished cells count as well, the first before the others.

    Raises:
        InputError: no cell is finished by one of these versions.
    """
    found: dict[str, int] = dict.fromkeys(versions, 0)
    chosen = []
    for cell in cells:
        others = (replace(cell, code=version) for version in versions)
        older = next((one for one in others if find_record(one, folder)), None)
        if older is not None:
            found[older.code] += 1
        chosen.append(older if older is not None and find_record(cell, folder) is None else cell)
    for version, count in found.items():
        require(count > 0, f"keep_code is '{version}', but no finished cell in '{folder}' is of that code.")
    return chosen


# ---------------------------------------------------------------- records that are not used


def unused(missing: Iterable[Cell], known: Collection[Cell], folder: Path) -> list[str]:
    """Write a line for each kind of finished run that resembles a missing cell but is not used, with the reason.

    Args:
        missing: cells that are about to be run.
        known: all cells whose records have a place in the table.
        folder: of the table.
    """
    names = {cell.path(folder).name for cell in known}
    reasons: dict[str, list[str]] = {}
    seen: set[Path] = set()
    for cell in missing:
        own = cell.path(folder)
        alike = [path for path in sorted(own.parent.glob(f"{cell.stem}__*.json")) if path.name not in names]
        for path in ([own] if own.exists() else []) + alike:
            if path not in seen:
                kind, sentence = _reason(cell, path)
                reasons.setdefault(kind, []).append(sentence)
            seen.add(path)
    return [_line(kind, sentences) for kind, sentences in reasons.items()]


def _reason(cell: Cell, path: Path) -> tuple[str, str]:
    """Reason for not using a record for a cell: its kind, and a sentence that names the difference."""
    try:
        record = read_sealed(path, FORMAT)
    except InputError as error:
        return "unreadable", str(error)
    said = record.get("asked")
    code = said.get("code") if isinstance(said, Mapping) else None
    difference = first_difference(said, replace(cell, code=code).asked if isinstance(code, str) else cell.asked)
    if difference is None:
        return ("unreadable", _fault(cell, record, path)) if code == cell.code else (f"code {code}", "")
    name, found, here = difference
    return f"settings {name}", f"{name} is {found} there and {here} here"


def _fault(cell: Cell, record: Mapping[str, Any], path: Path) -> str:
    """Describe what makes a record unusable that is of the run that is asked for; "" for nothing."""
    try:
        check_record(cell.job, record, f"The file '{path}'")
    except InputError as error:
        return str(error)
    return ""


def _line(kind: str, sentences: Sequence[str]) -> str:
    count = f"{len(sentences)} finished run{'s' if len(sentences) > 1 else ''}"
    what, _, detail = kind.partition(" ")
    if what == "unreadable":
        return f"{count} of an older version of dpilot or damaged, not used: {sentences[0]}"
    if what == "settings":
        return f"{count} of other settings, not used: {sentences[0]}."
    return (
        f"{count} of another version of the code, not used; add --keep-code {detail} to keep "
        f"{'them' if len(sentences) > 1 else 'it'}, if nothing that has changed since can change a result."
    )
