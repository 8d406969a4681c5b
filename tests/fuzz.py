"""Seeded edits of JSON records, as a careless or hostile stranger would make them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fl_core.base.errors import InputError
from fl_core.base.sealed import digest_of

DEEP: Any = json.loads("[" * 90 + "]" * 90)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.5, 10**12, 10**30, -(10**30), 1e300, 1e-300, -1e300),
    *("", "x", "nan", "inf", "-inf", "0", "[/x]", "\x1b[31mred", "a\nb", "\ud800", "../../etc/passwd", "=1+1"),
    *([], [1], ["x"], [[]], [None], {}, {"x": 1}, {"x": {"y": []}}, DEEP),
)
"""What an entry is replaced with."""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Walk all entries of a record, at any depth."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*path, key))


def edited(record: Any, draw: random.Random) -> tuple[str, Any]:
    """Make an edit of a record; also say which, for the message of a test that fails."""
    changed = copy.deepcopy(record)
    # Records hold long lists of alike numbers: first a field, then a place in it.
    field = draw.choice(sorted(changed))
    path = draw.choice([(field, *rest) for rest in [(), *places(changed[field])]])
    owner = changed
    for key in path[:-1]:
        owner = owner[key]
    last = path[-1]
    kind = draw.choice(["replace"] * 6 + ["delete", "repeat", "shorten", "rename"])
    if kind == "delete":
        del owner[last]
    elif kind == "repeat" and isinstance(owner[last], list) and owner[last]:
        owner[last] = owner[last] * 3
    elif kind == "shorten" and isinstance(owner[last], list):
        owner[last] = owner[last][:-1]
    elif kind == "rename" and isinstance(owner, dict):
        owner["other"] = owner.pop(last)
    else:
        kind, owner[last] = "replace", draw.choice(VALUES)
    told = owner.get(last) if isinstance(owner, dict) else None
    return f"{kind} {'.'.join(map(str, path))} -> {str(told)[:60]!r}", changed


def reseal(record: dict[str, Any]) -> dict[str, Any]:
    """Give a record a digest that fits, where it can have one."""
    try:
        return record | {"digest": digest_of(record)}
    except (ValueError, RecursionError):
        return record


def survivors(
    path: Path, use: Callable[[], Any], edits: int, seed: int, seal: Callable[[Any], Any] = reseal
) -> tuple[int, int, list[str]]:
    """Edit a file many times and use what it holds.

    Args:
        path: of the record.
        use: loads it and uses it.
        edits: how many to make, one at a time.
        seed: of the edits.
        seal: seals an edited record.

    Returns:
        Edits refused, edits that were used, and a line for each that ended in anything but an `InputError`.
    """
    record, draw = json.loads(path.read_text()), random.Random(seed)
    refused, used, faults = 0, 0, []
    for number in range(edits):
        what, changed = edited(record, draw)
        path.write_text(json.dumps(seal(changed)))
        try:
            use()
        except InputError as error:
            refused += 1
            sentence = str(error)
            if not sentence.endswith((".", "?")) or "\n" in sentence or "\x1b" in sentence:
                faults.append(f"{number} {what}: {sentence!r}")
        except Exception as error:  # a bare error is what is looked for
            faults.append(f"{number} {what}: {type(error).__name__}: {str(error)[:150]}")
        else:
            used += 1
    path.write_text(json.dumps(record))
    return refused, used, faults
