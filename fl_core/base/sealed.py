"""JSON records with the format, the version that wrote them and a digest, compared before they are used again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError, require
from fl_core.base.files import digest, read_json, spelled_out
from fl_core.base.libraries import metadata

DIGEST = "digest"


@cache
def dpilot_version() -> str:
    """Version of the installed distribution."""
    return metadata.version("dpilot")


def digest_of(record: Mapping[str, Any]) -> str:
    """Digest a record's values, whatever the file's layout; its own entry of that name is left out.

    Raises:
        ValueError: it holds a number that is not finite.
    """
    return digest({name: value for name, value in record.items() if name != DIGEST})


def sealed(record: Mapping[str, Any], file_format: int) -> dict[str, Any]:
    """Add to a record its format, the version that wrote it, and a digest over all of it."""
    whole = {"format": file_format, "dpilot": dpilot_version(), **record}
    return whole | {DIGEST: digest_of(whole)}


def sealed_line(record: Mapping[str, Any], file_format: int) -> str:
    """Write what `sealed` returns as one line, which takes a tenth of the time of an indented record."""
    whole = {"format": file_format, "dpilot": dpilot_version(), **record}
    text = json.dumps(whole, sort_keys=True, allow_nan=False)
    return f'{text[:-1]}, "{DIGEST}": "{hashlib.sha256(text.encode()).hexdigest()}"}}\n'


def read_sealed(path: Path, file_format: int) -> dict[str, Any]:
    """Read a record that `sealed` made.

    Raises:
        InputError: it is missing, unreadable, of another version, or was changed since it was written.
    """
    content = read_json(path)
    require(isinstance(content, dict), f"The file '{path}' does not hold a record.")
    record: dict[str, Any] = content
    found = record.get("format")
    require(
        found == file_format and not isinstance(found, bool),
        f"The file '{path}' has format {found}, but this version of dpilot reads format {file_format}.",
    )
    try:
        intact = digest_of(record) == record.get(DIGEST)
    except ValueError:
        intact = False
    require(intact, f"The file '{path}' was changed since it was written: its digest does not fit.")
    written, here = str(record.get("dpilot")), dpilot_version()
    require(
        written.split(".")[:2] == here.split(".")[:2],
        f"The file '{path}' was written by dpilot {written}, but this is dpilot {here}.",
    )
    return record


@contextlib.contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn whatever the values of a stranger's record raise where they are used into one sentence.

    The checks of types come before; this is for what only the use can find out.

    Args:
        what: the record, for the message: "The file 'x' describes no training".

    Raises:
        InputError: the block raised one, or an error of types, values, names or shapes.
    """
    try:
        yield
    except InputError:
        raise
    except _MISFITS as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise InputError(f"{what}: {' '.join(reason.split())[:200].rstrip('.')}.") from error


_MISFITS = (ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def require_same(said: Any, asked: Any, what: str) -> None:
    """Refuse to go on with a record that was made under other settings, or by other code.

    Args:
        said: settings in the record, nested mappings of JSON values.
        asked: those that hold here; both must have the same names.
        what: the record, for the message: "The run in 'runs/x'".

    Raises:
        InputError: an entry differs, or only one of them has it.
    """
    found = first_difference(said, asked)
    if found is not None:
        name, known, here = found
        raise InputError(f"{what} was made with {name} {known}, but here it is {here}; start anew.")


def first_difference(said: Any, asked: Any) -> tuple[str, Any, Any] | None:
    """Dotted name, recorded and present value of the first setting that two nested mappings do not share."""
    theirs, mine = _flat(said), _flat(spelled_out(asked))
    for name in {**mine, **theirs}:
        known, here = theirs.get(name, "not recorded"), mine.get(name, "no setting")
        if known != here:
            return name, known, here
    return None


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Entries of nested mappings by dotted names."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        inner: leaf
        for key, one in value.items()
        for inner, leaf in _flat(one, f"{name}.{key}" if name else str(key)).items()
    }
