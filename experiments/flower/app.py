"""The app that `flwr run` starts: server and clients of one federation, set up by the run's configuration."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from envs import Setting
from envs.setting import SETTING_NAMES
from experiments.flower.client import make_client_app
from experiments.flower.strategy import DPilotStrategy, model_of
from fl_core.base.errors import require_name
from fl_core.run.config import FederationConfig

SERVERS = {
    "folder": "runs/flower",
    "controller": "fixed",
    "seed": 0,
    "secret_noise": True,
    "exact_metrics": False,
    "connect_seconds": 60.0,
    "round_seconds": 600.0,
}
"""Settings of the app itself with their defaults; all others are those of `envs.Setting.of`."""


def read_run_config(context: Context) -> tuple[Setting, dict[str, Any]]:
    """Read a run's configuration: the setting, of target clients unless it says otherwise, and `SERVERS`.

    Raises:
        InputError: a name is unknown or a value is not allowed.
    """
    given = {name.replace("-", "_"): value for name, value in context.run_config.items()}
    for name in given:
        require_name("setting", name, [*SETTING_NAMES, *SERVERS])
    own = {name: given.pop(name, value) for name, value in SERVERS.items()}
    return Setting.of(**{"instances": "test", **given}), own


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
        own["folder"],
        setting,
        own["controller"],
        model_of(setting),
        seed=own["seed"],
        noise="secret" if own["secret_noise"] else "seeded",
        exact_metrics=own["exact_metrics"],
        connect_seconds=own["connect_seconds"],
    )
    strategy.start(grid, timeout=own["round_seconds"])
