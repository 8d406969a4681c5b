"""Options that belong to the learning agent or to the federation: `--agent.NAME` and `--federation.NAME`.

Where a command has both, a bare name that both could mean is refused, for whoever knows one of them takes it for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from agents.config import TrainingConfig
from experiments.commands.options import typed_name
from fl_core.base.errors import InputError, require_name
from fl_core.run.config import FederationConfig

OWNERS: dict[str, tuple[str, type[Any]]] = {
    "agent": ("training", TrainingConfig),
    "federation": ("federation", FederationConfig),
}
"""Prefix of an option -> field of a command and its class."""
AMBIGUOUS = {
    "learning-rate": "--agent.learning-rate for the agent's",
    "batch-size": "--agent.minibatches or --agent.replay-batch for the agent's",
    "device": "--agent.device for the agent's",
    "optimizer": "nothing for the agent's, which its algorithm fixes",
    "momentum": "nothing for the agent's, which its algorithm fixes",
    "weight-decay": "nothing for the agent's, which its algorithm fixes",
}
"""Names of the federation that users of stable-baselines3 know as the agent's -> how the agent's is written."""


def bare_options(name: str, cls: type[Any], arguments: Sequence[str]) -> list[str]:
    """Convert options with an owner to the names under which a command parses them.

    Args:
        name: of the command.
        cls: its dataclass.
        arguments: what was typed after the name, or stands in a file outside the groups of options.

    Raises:
        InputError: a bare name could mean either owner's, or an owner has no option of that name.
    """
    groups = {one.name for one in fields(cls)}
    owners = {owner: kind for owner, (group, kind) in OWNERS.items() if group in groups}
    return [_bare(name, owners, one) if one.startswith("--") else one for one in arguments]


def _bare(command: str, owners: dict[str, type[Any]], argument: str) -> str:
    typed, equals, value = argument.removeprefix("--").partition("=")
    typed = typed.replace("_", "-")
    owner, dot, own = typed.partition(".")
    if dot and owner in owners:
        negated = own.startswith("no-") and own.removeprefix("no-").replace("-", "_") in get_type_hints(owners[owner])
        plain = (own.removeprefix("no-") if negated else own).replace("-", "_")
        require_name(f"option of the {owner}", plain, [one.name for one in fields(owners[owner])])
        found = typed_name(plain, get_type_hints(owners[owner], include_extras=True))
        return f"--{'no-' if negated else ''}{found}{equals}{value}"
    if len(owners) == len(OWNERS) and typed in AMBIGUOUS:
        raise InputError(
            f"--{typed} could be the agent's or the federation's in dpilot {command}; write --federation.{typed} for "
            f"that of the clients, and {AMBIGUOUS[typed]}."
        )
    return argument
