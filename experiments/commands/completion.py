"""`dpilot completion`: completion of commands and options in a shell."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from experiments.commands.catalog import COMMANDS
from experiments.commands.options import with_extras
from fl_core.base.errors import require_name
from fl_core.run.choices import one_of

SHELLS = ("bash", "zsh")


@dataclass(frozen=True)
class CompletionCommand:
    """A script that completes commands and options; bash takes it by: source <(dpilot completion bash)."""

    shell: Annotated[str, tyro.conf.Positional, one_of(SHELLS)] = "bash"
    """Shell that is to complete."""

    def execute(self) -> dict[str, str]:
        """Print the script, and return it."""
        require_name("shell", self.shell, SHELLS)
        script = io.StringIO()
        commands: dict[str, Any] = {name: with_extras(entry.load_options()) for name, entry in COMMANDS.items()}
        with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
            tyro.extras.subcommand_cli_from_dict(commands, prog="dpilot", args=["--tyro-print-completion", self.shell])
        print(script.getvalue(), end="")
        return {"shell": self.shell, "script": script.getvalue()}
