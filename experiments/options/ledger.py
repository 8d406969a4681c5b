"""The options of `dpilot ledger`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fl_core.base.errors import require, require_name
from fl_core.privacy.accounting import ACCOUNTANTS

ACCOUNTANTS_HELP = (
    f"Accountants whose figures to give beside the certified one, of {', '.join(ACCOUNTANTS)} (`dpilot list "
    "accountants`). None takes pld and rdp below sampling rate 1, where they differ."
)


@dataclass(frozen=True)
class LedgerOptions:
    """The privacy of a run, read from its folder; leaves a figure of it there."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """The run's folder, as `dpilot run` printed it."""
    accountants: Annotated[tuple[str, ...], tyro.conf.arg(help=ACCOUNTANTS_HELP)] = ()

    def check(self) -> None:
        """Refuse names and numbers that no command of this kind can have.

        Raises:
            InputError: one of them is not allowed.
        """
        require(bool(self.run), "ledger needs the folder of a run: dpilot ledger runs/NAME.")
        for name in self.accountants:
            require_name("accountant", name, ACCOUNTANTS)
        path = Path(self.run)
        folder = path.parent if path.suffix == ".json" else path
        require(path.is_dir() or folder.is_dir(), f"There is no folder '{folder}'.")
