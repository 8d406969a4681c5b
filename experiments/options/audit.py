"""The options of `dpilot audit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro
from typing_extensions import override

from envs.tasks import default_federation
from experiments.options.resuming import Resumable
from experiments.workers.options import WorkerOptions
from fl_core.audit.ranges import CANARIES
from fl_core.base.errors import require
from fl_core.run.config import FederationConfig
from fl_core.run.plan import CLIP_NORM
from fl_core.run.ranges import SEED


@dataclass(frozen=True)
class AuditOptions(Resumable):
    """Attacks on the real rounds of a method: does one client move, and show in, what is released as little as claimed?

    Prints claimed and certified epsilon, what was measured, and a verdict; figures go to a folder below --runs.
    """

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    canaries: int = 200
    """Clients with secret directions, each in or out by a coin, over as many runs as it takes."""
    clip_norm: float = 0.0
    """Clip norm C; 0 takes the task's."""
    seed: int = 0
    """Of directions, coins, cohorts and noise."""
    runs: Path = Path("runs")
    """Folder that receives the audit's folder."""
    page: Path | None = None
    """File for a page on the result, such as verdict.md; its figure goes beside it."""
    papers: Path | None = None
    """Folder for the pages of the five papers' methods as published, each in its paper's setting; other options of
    the federation are then left aside."""
    resume: Path | None = None
    """Folder of interrupted pages of the papers to continue; every other option is taken from it."""
    workers: tyro.conf.OmitArgPrefixes[WorkerOptions] = field(default_factory=WorkerOptions)
    """Where the audits of several papers run."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation."""

    @override
    def check_new(self) -> None:
        CANARIES.check("canaries", self.canaries)
        SEED.check("seed", self.seed)
        if self.clip_norm:
            CLIP_NORM.check("clip_norm", self.clip_norm)
        both = self.papers is not None and self.page is not None
        require(not both, "page and papers are both given, but the pages of papers have names of their own.")
        self.workers.check()
        if self.papers is None:
            self.workers.require_none("audit", "--papers")
            self.federation.require_seeded_noise("an audit")
