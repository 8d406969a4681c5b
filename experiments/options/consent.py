"""Consent to what takes very long: a command says what it would cost, and starts it with --yes alone."""

from __future__ import annotations

from fl_core.base.errors import InputError
from fl_core.base.text import short

MOST_ROUNDS = 1_000_000
"""Federated rounds that a command starts without being asked twice; on the smallest task they take hours."""
_COUNTABLE = 10**18
"""Rounds from which on their number says no more than that it is too large."""


def require_consent(yes: bool, rounds: float, setting: str, value: object, clients: int) -> None:
    """Refuse work of more than `MOST_ROUNDS` rounds that the user has not agreed to.

    Args:
        yes: True if the user has.
        rounds: federated rounds that it takes.
        setting: what makes it so many, for the message.
        value: of that setting.
        clients: in each round.

    Raises:
        InputError: it takes more, and the user has not.
    """
    if yes or rounds <= MOST_ROUNDS:
        return
    told = f"{rounds:,.0f}" if rounds < _COUNTABLE else "uncountably many"
    raise InputError(
        f"{setting} is {short(value)}, which takes {told} federated rounds of {clients} clients in all, more than "
        f"{MOST_ROUNDS:,}; lower it, or add --yes to start them."
    )
