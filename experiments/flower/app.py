"""The app that `flwr run` starts: server and clients of one federation, set up by the run's configuration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from envs import Setting
from envs.setting import SETTING_NAMES
from experiments.flower.client import make_client_app
from experiments.flower.strategy import CONNECT_SECONDS, ROUND_SECONDS, DPilotStrategy, model_of
from fl_core.base.bounds import check_numbers
from fl_core.base.errors import require, require_name
from fl_core.base.values import field_kinds, read_value
from fl_core.run.config import FederationConfig
from fl_core.run.ranges import SEED


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the app itself; all others are those of `envs.Setting.of`."""

    folder: str = "runs/flower"
    """Ledger, charges and model; on the server."""
    controller: str = "fixed"
    """As on the command line."""
    seed: int = 0
    """Of the initial model."""
    secret_noise: bool = True
    """False draws cohorts and noise from the seed, for tests."""
    exact_metrics: bool = False
    """True asks clients for exact training losses, which no ε covers."""
    connect_seconds: float = 60.0
    """How long nodes are waited for."""
    round_seconds: float = 600.0
    """How long a round waits for its nodes."""

    def __post_init__(self) -> None:
        require(bool(self.folder.strip()), "folder is empty, but it must be the name of a folder.")
        check_numbers(self, {"seed": SEED, "connect_seconds": CONNECT_SECONDS, "round_seconds": ROUND_SECONDS})


_KINDS = field_kinds(ServerSettings)


def read_run_config(context: Context) -> tuple[Setting, ServerSettings]:
    """Read a run's configuration: the setting, of target clients unless it says otherwise, and the app's own.

    Raises:
        InputError: a name is unknown or a value is not allowed.
    """
    given = {name.replace("-", "_"): value for name, value in context.run_config.items()}
    for name in given:
        require_name("setting", name, [*SETTING_NAMES, *_KINDS])
    own = {name: read_value(name, given.pop(name), kind) for name, kind in _KINDS.items() if name in given}
    return Setting.of(**{"instances": "test", **given}), ServerSettings(**own)


def _config_of(context: Context) -> FederationConfig:
    torch.set_num_threads(1)  # many clients share a machine
    return read_run_config(context)[0].federation


server_app = ServerApp()
client_app = make_client_app(_config_of)


@server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    """Run the federation to its end, or from where it was killed."""
    setting, own = read_run_config(context)
    strategy = DPilotStrategy(
        own.folder,
        setting,
        own.controller,
        model_of(setting),
        seed=own.seed,
        noise="secret" if own.secret_noise else "seeded",
        exact_metrics=own.exact_metrics,
        connect_seconds=own.connect_seconds,
    )
    strategy.start(grid, timeout=own.round_seconds)
