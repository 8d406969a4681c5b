"""The options of `dpilot run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from typing_extensions import override

from envs.instances import INSTANCES
from envs.tasks import default_federation
from experiments.contenders.default import AUTO, default_controller
from experiments.contenders.specs import read_spec
from experiments.options.consent import require_consent
from experiments.options.resuming import Resumable
from experiments.records.shown import SHOWS, Shown
from fl_core.base.errors import require_name
from fl_core.data.populations import POPULATIONS
from fl_core.run.choices import one_of
from fl_core.run.config import FederationConfig
from fl_core.run.ranges import SEED

SHOW_HELP = (
    "Figures that are written and printed: " + "; ".join(f"{name}: {words}" for name, words in SHOWS.items()) + "."
)


@dataclass(frozen=True)
class RunOptions(Resumable):
    """One federated run under one controller. Its rounds go to a folder below --runs, and to TensorBoard."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    controller: str = AUTO
    """Controller that sets the knobs: a schedule with its parameters (`dpilot list controllers`), a trained one as
    ppo:FOLDER, your own as FILE.py:NAME, or none; auto takes probe, or fixed where noise is planned ahead or absent."""
    seed: int = 0
    """Instance: fixes partition, initial model, cohorts, batches and noise."""
    search_instances: int = 8
    """Training instances on which best-fixed, and what derives from it, is searched first."""
    train_on: Annotated[str, one_of(POPULATIONS)] = "proxy"
    """Clients whose runs that search takes: proxy, or, at a cost in privacy that no epsilon contains, target or all."""
    show: Annotated[str, tyro.conf.arg(help=SHOW_HELP), one_of(SHOWS)] = "all"
    runs: Path = Path("runs")
    """Folder that receives the run's folder."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""
    resume: Path | None = None
    """Folder of an interrupted run to continue; every other option is taken from it."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    missed: ClassVar[str] = "no run to continue"

    @override
    def check_new(self) -> None:
        SEED.check("seed", self.seed)
        rounds, clients = self.federation.rounds, self.federation.clients
        require_consent(self.yes, rounds * self.search_instances, "search_instances", self.search_instances, clients)
        INSTANCES.check("search_instances", self.search_instances)
        require_name("train_on", self.train_on, POPULATIONS)
        Shown(self.show)
        read_spec(self.acting)

    @property
    def acting(self) -> str:
        """Controller that acts: the one named, or the default one of the federation."""
        return default_controller(self.federation) if self.controller == AUTO else self.controller
