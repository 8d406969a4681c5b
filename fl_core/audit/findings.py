"""Findings: the things that an attack saw and that are not as claimed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that is not as claimed.

    Attributes:
        attack: name of the attack, one of `fl_core.audit.audit.ATTACKS`.
        topic: aspect that it is about; an alarm of canaries counts where new ones raise it again.
        leak: True if clients are protected less than claimed; otherwise the mechanism has more noise than it says.
        text: the finding in words.
    """

    attack: str
    topic: str
    leak: bool
    text: str
