"""Executors by name, and those measured to be the faster on some shapes: kept for the process, handed to later ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fl_core.base.errors import require
from fl_core.base.text import short

EXECUTORS = {
    "auto": "times vectorized and sequential in the first training and takes the faster one",
    "vectorized": "many clients in one batched computation",
    "sequential": "one client after the other",
    "compiled": "vectorized by torch.compile, which takes half a minute for each shape first; for long runs",
}

_KINDS = ("vectorized", "sequential")
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


def check_choices(choices: Mapping[str, Sequence[str]], where: str) -> None:
    """Refuse what `executor_choices` cannot have returned.

    Args:
        choices: by the shapes in words, kind of the executor and the measurement in words.
        where: the file that they are from, for the message.

    Raises:
        InputError: one is of another type, or of a kind that there is not.
    """
    for choice in choices.values():
        texts = isinstance(choice, (list, tuple)) and len(choice) == 2 and all(isinstance(one, str) for one in choice)
        require(
            texts and choice[0] in _KINDS and choice[1].isprintable(),
            f"{where}: an executor is {short(choice)}, but it must be {' or '.join(_KINDS)}, and how it was measured.",
        )


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
    check_choices(choices, "What was measured")
    for key, (kind, words) in choices.items():
        differs |= _choices.setdefault(key, (kind, words))[0] != kind
        if over_own:
            _choices[key] = kind, words
    return differs
