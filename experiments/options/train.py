"""The options of `dpilot train`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from typing_extensions import override

from agents.config import TrainingConfig
from agents.costs import decisions_per_episode, rounds_ahead
from envs import EnvSpec, Setting
from envs.context import CONTEXTS
from envs.knobs import knob_names
from envs.rewards import REWARDS, find_reward
from envs.signals import SIGNAL_SETS
from envs.tasks import default_federation, find_task
from experiments.options.consent import require_consent
from experiments.options.resuming import Resumable
from experiments.workers.options import WorkerOptions
from fl_core.base.errors import require, require_count, require_name
from fl_core.data.populations import POPULATIONS
from fl_core.run.choices import one_of
from fl_core.run.config import FederationConfig
from fl_core.run.ranges import SEED


@dataclass(frozen=True)
class TrainOptions(Resumable):
    """Train a controller on the task's training instances; the best on validation is saved as one folder."""

    task: str = "digits"
    """Built-in task (`dpilot list tasks`); the federation options default to its settings."""
    knobs: str = "clip_norm"
    """Comma-separated knobs that the controller sets (`dpilot list knobs`)."""
    signals: Annotated[str, one_of(SIGNAL_SETS)] = "public"
    """Signals that it sees: public, accounted (paid for from the same budget) or paper (exact, uncounted)."""
    reward: Annotated[str, one_of(REWARDS)] = "advantage"
    """Reward that it learns from (`dpilot list rewards`)."""
    decision_rounds: int = EnvSpec.decision_rounds
    """Communication rounds per decision."""
    generator: str = ""
    """Settings in which its instances differ besides their seeds (`dpilot list generators`): a name, or as written,
    epsilon=3..12,clients=25|50."""
    context: Annotated[str, one_of(CONTEXTS)] = "hidden"
    """Settings in which instances differ, as features that it sees: visible or hidden."""
    runs: Path = Path("runs")
    """Folder that receives the training's folder."""
    train_on: Annotated[str, one_of(POPULATIONS)] = "proxy"
    """Clients whose runs it learns from and is validated on: proxy, or, at a cost in privacy that no epsilon contains,
    target or all."""
    yes: bool = False
    """Start also what takes more than a million federated rounds."""
    seeds: int = 1
    """Trainings, of the agent's seed and those that follow it, each in a folder of its own below one."""
    resume: Path | None = None
    """Folder of an interrupted training, or of several, to continue; every other option is taken from it."""
    workers: tyro.conf.OmitArgPrefixes[WorkerOptions] = field(default_factory=WorkerOptions)
    """Where several trainings run."""
    training: tyro.conf.OmitArgPrefixes[TrainingConfig] = field(default_factory=TrainingConfig)
    """Settings of the learning agent; --agent.NAME is each one's whole name."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation; --federation.NAME is each one's whole name, and has to be written for those that an
    agent could have: learning-rate, batch-size, device, optimizer, momentum and weight-decay."""

    missed: ClassVar[str] = "no training to continue"

    @override
    def check_new(self) -> None:
        self.check_cost()
        self.setting()
        self.workers.check()
        if self.seeds == 1:
            self.workers.require_none("training", "--seeds")

    def setting(self) -> Setting:
        """Make the setting of its environments.

        Raises:
            InputError: a population is unknown, or asked for by the option that a training does not follow.
        """
        self.federation.require_seeded_noise("a training")
        require_name("train_on", self.train_on, POPULATIONS)
        task = find_task(self.task)
        knob_names(task, self.knobs, self.federation.recipe().knobs)  # refuses what is not the method's
        own, usual = self.federation.population, task.federation.population
        require(own == usual, f"population is '{own}', but a training takes its clients from train_on; set that.")
        spec = EnvSpec(
            self.knobs,
            self.signals,
            self.reward,
            self.decision_rounds,
            generator=self.generator,
            context=self.context,
        )
        return Setting(replace(task, federation=replace(self.federation, population=self.train_on)), spec)

    def check_cost(self) -> None:
        """Refuse a training that takes very long without consent.

        Raises:
            InputError: as `require_consent`.
        """
        training, rounds = self.training, self.federation.rounds
        require_count("decision_rounds", self.decision_rounds)
        require_count("seeds", self.seeds)
        updates = training.updates(decisions_per_episode(rounds, self.decision_rounds))
        total = rounds_ahead(training, 0, updates, rounds, find_reward(self.reward).needs_reference)
        validations = total - rounds_ahead(replace(training, validation_instances=1), 0, updates, rounds, False)
        name = "validation_instances" if 2 * validations > total else "timesteps" if training.timesteps else "episodes"
        require_consent(self.yes, total, name, getattr(training, name), self.federation.clients)
        require_consent(self.yes, total * self.seeds, "seeds", self.seeds, self.federation.clients)
        SEED.check("seed of the last training", training.seed + self.seeds - 1)
