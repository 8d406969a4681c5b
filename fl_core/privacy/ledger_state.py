"""The saved state of a ledger: its settings and charges as JSON values, with a digest that detects edits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fl_core.base.errors import InputError, require
from fl_core.base.files import digest
from fl_core.privacy.releases import BudgetExhausted, Charge

VERSION = 2
"""Version of the format."""


class SavedCharges:
    """The charges of a ledger as JSON values and as text, made one by one, so that a state takes no time."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._texts: list[str] = []

    def add(self, charge: Charge) -> None:
        """Append a charge."""
        self.rows.append(charge.as_row())
        self._texts.append(json.dumps(self.rows[-1], allow_nan=False))

    def state(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make the state of a ledger of its settings and these charges, whose rows are not copied."""
        head = {**settings, "version": VERSION}
        return {**head, "charges": list(self.rows), "sha256": self._digest(head)}

    def _digest(self, head: Mapping[str, Any]) -> str:
        """Compute `digest` of a state from the JSON text of its charges, which saves writing them out again."""
        text = json.dumps({**head, "charges": "@"}, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.replace('"@"', f"[{', '.join(self._texts)}]").encode()).hexdigest()


def sound_charges(state: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Any]:
    """Check a state and return its charges as rows.

    Args:
        state: as `SavedCharges.state` makes it; within `refused_if_damaged`, for it may be anything.
        settings: of the ledger that is to take the charges.

    Raises:
        InputError: the state is of another version or was edited, or its ledger had other settings.
    """
    require(
        state.get("version") == VERSION,
        f"The ledger's state has version {state.get('version', 1)}, from before a ledger named its adjacency "
        f"and whether its noise was planned, but only version {VERSION} can be continued.",
    )
    content = {key: value for key, value in state.items() if key != "sha256"}
    require(
        state["sha256"] == digest(content),
        "The ledger's state was edited or is damaged: its sha256 does not match its content.",
    )
    for key, mine in settings.items():
        require(content[key] == mine, f"The ledger's state has {key} {content[key]}, but the run has {mine}.")
    charges: list[Any] = content["charges"]
    return charges


@contextmanager
def refused_if_damaged() -> Iterator[None]:
    """Turn what goes wrong with the content of a state into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, BudgetExhausted, LookupError, TypeError, ValueError) as error:
        raise InputError(f"The ledger's state is not one that a ledger wrote ({error!r}).") from error
