"""The options of `dpilot advise`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import tyro

from envs.tasks import default_federation
from fl_core.base.errors import require
from fl_core.run.config import FederationConfig


@dataclass(frozen=True)
class AdviseOptions:
    """Advice before a run, from its settings alone: whether its privacy leaves anything to learn, for how many rounds,
    with which clip norm and controller. No client's data are used."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    def check(self) -> None:
        """Refuse settings without noise, of which there is nothing to say.

        Raises:
            InputError: the method adds no noise, or ε is infinite.
        """
        config = self.federation
        require(
            config.recipe().private,
            f"method '{config.method}' adds no noise to what it exchanges, so that there is no privacy to advise on; "
            "name one that does (`dpilot list methods`).",
        )
        require(
            math.isfinite(config.epsilon),
            "epsilon is inf, without noise, so that there is nothing to advise on; lower it.",
        )
