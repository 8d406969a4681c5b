"""The options of `dpilot compare`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from typing_extensions import override

from envs.generators import parse_generator
from envs.instances import INSTANCES, PLACE
from envs.tasks import default_federation
from experiments.contenders.specs import COARSE_VALUES, read_specs, rounds_named, trainings_named
from experiments.contenders.varied import read_varied
from experiments.options.consent import require_consent
from experiments.options.resuming import Resumable
from experiments.workers.options import WorkerOptions
from fl_core.base.errors import require, require_count, require_name
from fl_core.base.values import read_list
from fl_core.data.populations import POPULATIONS
from fl_core.run.choices import one_of
from fl_core.run.config import FederationConfig

DEFAULT_CONTROLLERS = ("fixed", "best-fixed", "exponential-decay", "server-lr-decay", "aqc", "probe")


@dataclass(frozen=True)
class CompareOptions(Resumable):
    """Controllers on the same held-out instances, at the same epsilon and delta; leaves a report."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    controllers: tuple[str, ...] = DEFAULT_CONTROLLERS
    """Controllers to compare (`dpilot list controllers`); trained ones as ppo:FOLDER, or ppo:FOLDER,FOLDER,... for
    several trainings of one; your own as FILE.py:NAME."""
    seeds: int = 20
    """Held-out seeds that every controller runs on, in each instance."""
    first_seed: int = 0
    """Place in the test set of the first of them: other seeds than the usual ones, for a result that does not hang on
    those."""
    vary: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: none)")] = ()
    """Settings in which instances differ, as epsilon=2,8 partition=iid,shards(1): every combination is one."""
    generator: str = ""
    """Draws instances instead, by name (`dpilot list generators`) or as written, epsilon=3..12,clients=25|50; searches
    run on its training instances."""
    draws: int = 10
    """Instances drawn from the generator's test set."""
    first_draw: int = 0
    """Place in that set of the first of them: other settings than the usual ones."""
    hindsight: bool = False
    """Play a grid of fixed clip norms on the held-out runs too, and report the regret to the best."""
    search_instances: int = 8
    """Training instances on which best-fixed, and what derives from it, is searched."""
    train_on: Annotated[str, one_of(POPULATIONS)] = "proxy"
    """Clients whose runs that search takes: proxy, or, at a cost in privacy that no epsilon contains, target or all."""
    runs: Path = Path("runs")
    """Folder that receives the comparison's folder."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""
    resume: Path | None = None
    """Folder of an interrupted comparison to continue; every other option is taken from it."""
    workers: tyro.conf.OmitArgPrefixes[WorkerOptions] = field(default_factory=WorkerOptions)
    """Where jobs run."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    @override
    def check_new(self) -> None:
        require(bool(self.controllers), "controllers is empty, but it needs at least one name.")
        own, named = self.federation.rounds, read_specs(self.controllers)
        self._check_size(sum(trainings_named(one) * rounds_named(one, own) for one in named))
        require_name("train_on", self.train_on, POPULATIONS)
        PLACE.check("first_seed", self.first_seed)
        PLACE.check("first_draw", self.first_draw)
        read_varied(self.vary)
        if self.generator:
            require(not self.vary, "vary and generator both say what instances differ in; give one of them.")
            parse_generator(self.generator)
        self.workers.check()
        self.federation.require_seeded_noise("a comparison")

    def _check_size(self, once: int) -> None:
        """Refuse what cannot be played, and what takes very long without consent; searches are not counted.

        Args:
            once: rounds that all trainings and schedules take for one seed; each plays all seeds of every instance that
                is varied or drawn.
        """
        least = {"seeds": self.seeds, "draws": self.draws, "search_instances": self.search_instances}
        for name, value in least.items():
            require_count(name, value)
        varied = math.prod(len(read_list("vary", option.partition("=")[2])) for option in self.vary)
        instances = self.draws if self.generator else varied
        cause = "seeds" if self.seeds >= instances else "draws" if self.generator else "vary"
        rounds, clients = self.federation.rounds, self.federation.clients
        played = (once + rounds * COARSE_VALUES * self.hindsight) * self.seeds * instances
        require_consent(self.yes, played, cause, getattr(self, cause), clients)
        require_consent(self.yes, rounds * self.search_instances, "search_instances", self.search_instances, clients)
        for name, value in least.items():
            INSTANCES.check(name, value)
