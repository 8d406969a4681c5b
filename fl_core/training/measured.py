"""Executors by name, and those measured to be the faster on some shapes: kept for the process, handed to later ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fl_core.base.errors import require

EXECUTORS = {
    "auto": "times both in the first training and takes the faster one",
    "vectorized": "many clients in one batched computation",
    "sequential": "one client after the other",
}

_choices: dict[str, tuple[str, str]] = {}


def measured(key: str, measure: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """Return the kind of executor and the measurement in words; equal shapes are measured once, so they choose alike.

    Args:
        key: shapes in words.
        measure: times the executors on them.
    """
    if key not in _choices:
        _choices[key] = measure()
    return _choices[key]


def executor_choices() -> dict[str, tuple[str, str]]:
    """Return everything that was measured so far, by the shapes in words."""
    return dict(_choices)


def adopt_choices(choices: Mapping[str, Sequence[str]], over_own: bool = False) -> bool:
    """Take over what an earlier process measured, so that `auto` chooses as it did there.

    Args:
        choices: from `executor_choices`.
        over_own: whether they also take the place of what this process has measured itself.

    Returns:
        True if this process had measured otherwise: executors that it has made before still act by that.

    Raises:
        InputError: they are none.
    """
    differs = False
    for key, choice in choices.items():
        kind, words = (*choice, "", "")[:2]
        require(kind in ("vectorized", "sequential"), f"The measured executor is {kind!r}, but there is none such.")
        differs |= _choices.setdefault(key, (kind, words))[0] != kind
        if over_own:
            _choices[key] = kind, words
    return differs
