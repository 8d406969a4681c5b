"""Consent to what takes very long: a command says what it would cost, and starts it with --yes alone."""

from __future__ import annotations

from fl_core.base.errors import require

MOST_ROUNDS = 1_000_000
"""Federated rounds that a command starts without being asked twice; on the smallest task they take hours."""


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
    require(
        yes or rounds <= MOST_ROUNDS,
        f"{setting} is {value}, which takes {rounds:,.0f} federated rounds of {clients} clients in all, more than "
        f"{MOST_ROUNDS:,}; lower it, or add --yes to start them.",
    )
