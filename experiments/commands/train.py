"""`dpilot train`: train a controller, and print the command that compares it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from agents.blueprint import Blueprint
from agents.checkpoint import CHECKPOINT
from agents.config import TrainingConfig
from agents.costs import rounds_ahead
from agents.rollouts import decisions_per_episode
from agents.trainer import CONTROLLER, TrainingResult
from agents.training import require_knobs, resume, train
from envs import EnvCore, EnvSpec, Setting
from envs.context import CONTEXTS
from envs.rewards import REWARDS, find_reward
from envs.signals import SIGNAL_SETS
from envs.tasks import default_federation, find_task
from experiments.commands.consent import require_consent
from experiments.commands.interruptions import require_alone, resumable
from experiments.records.consistency import SUMMARY
from experiments.records.folder import make_run_folder, says_complete, write_yaml
from experiments.records.order import FILE as ORDER
from experiments.records.order import read_order, require_same_order, write_order
from fl_core.base.code_version import code_version
from fl_core.base.errors import InputError, require, require_count, require_name
from fl_core.base.files import read_json, write_json
from fl_core.data.populations import POPULATIONS
from fl_core.run.budget import stated
from fl_core.run.choices import one_of
from fl_core.run.config import FederationConfig

_NOT_COMPARED = ("executor", "device", "memory_limit_mib", "data_root", "population")
"""Settings of a training that its comparison does not take over: it is judged on other clients, maybe elsewhere."""


@dataclass(frozen=True)
class TrainCommand:
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
    resume: Path | None = None
    """Folder of an interrupted training to continue; every other option is taken from it."""
    training: tyro.conf.OmitArgPrefixes[TrainingConfig] = field(default_factory=TrainingConfig)
    """Settings of the learning agent; --agent.NAME is each one's whole name."""
    federation: tyro.conf.OmitArgPrefixes[FederationConfig] = field(default_factory=default_federation)
    """Settings of the federation; --federation.NAME is each one's whole name, and has to be written for those that an
    agent could have: learning-rate, batch-size, device, optimizer, momentum and weight-decay."""

    def execute(self) -> dict[str, Any]:
        """Train, write the summary, print it and return it."""
        if self.resume is not None:
            require_alone(self)
            folder = self.resume
            if _is_complete(folder):
                print(
                    f"The training in '{folder}' is complete, so nothing was changed. Controller: {folder / CONTROLLER}"
                )
                return {"folder": str(folder), **read_json(folder / SUMMARY)}
        else:
            self.check_cost()
            require_knobs(EnvCore(self.setting()))  # refuses what does not fit before a folder is made
            folder = self.new_folder()
        result, summary = train_in(folder)
        print(f"To look at it: tensorboard --logdir {folder.parent}")
        print(f"To compare it: {compare_command(result.controller.blueprint, folder)}")
        return {"folder": str(folder), **summary}

    def setting(self) -> Setting:
        """Make the setting of its environments.

        Raises:
            InputError: a population is unknown, or asked for by the option that a training does not follow.
        """
        self.federation.require_seeded_noise("a training")
        require_name("train_on", self.train_on, POPULATIONS)
        task = find_task(self.task)
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
        updates = training.updates(decisions_per_episode(rounds, self.decision_rounds))
        total = rounds_ahead(training, 0, updates, rounds, find_reward(self.reward).needs_reference)
        validations = total - rounds_ahead(replace(training, validation_instances=1), 0, updates, rounds, False)
        name = "validation_instances" if 2 * validations > total else "timesteps" if training.timesteps else "episodes"
        require_consent(self.yes, total, name, getattr(training, name), self.federation.clients)

    def new_folder(self) -> Path:
        """Make the training's folder, with its configuration in it."""
        folder = make_run_folder(self.runs, self.task, self.training.algo, self.training.seed)
        write_yaml(folder / "config.yaml", {"command": "train", **asdict(self)})
        options = {"settings": self.setting().as_record(), "training": asdict(self.training)}
        write_order(folder, "train", options, {"code": code_version()})
        return folder


def train_in(folder: Path) -> tuple[TrainingResult, dict[str, Any]]:
    """Train as a folder's order says, from its last checkpoint where it has one; returns result and summary."""
    with resumable("train", folder, lambda: f"the training {_progress(folder)}"):
        if (folder / CHECKPOINT).exists() or not (folder / ORDER).exists():
            result = resume(folder, progress=True)
        else:
            result = _begin(folder)
        return result, finish(result, folder)


def _begin(folder: Path) -> TrainingResult:
    """Train from the beginning; what an interruption before the first checkpoint has left is removed."""
    options, made_of = read_order(folder, "train")
    require_same_order(folder, "training", made_of, {"code": code_version()})
    try:
        network = options["training"]["network"]
        training = TrainingConfig(**options["training"] | {"network": None if network is None else tuple(network)})
        setting = Setting.resumed(options["settings"], folder)
    except (KeyError, TypeError) as error:
        raise InputError(f"The order in '{folder}' describes no training; start anew.") from error
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()
    return train(setting, training, folder, progress=True)


def _progress(folder: Path) -> str:
    """Describe a training's last checkpoint."""
    found = [path.stem.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*.safetensors")]
    done = max((int(name) for name in found if name.isdecimal()), default=None)
    if done is None:
        return "at its beginning, without a checkpoint yet"
    return f"as it was after update {done}" if done else "before its first update"


def _is_complete(folder: Path) -> bool:
    """Return True if a folder holds a training that has ended, and its controller."""
    return (folder / CONTROLLER).is_dir() and says_complete(folder / SUMMARY)


def compare_command(blueprint: Blueprint, folder: Path) -> str:
    """Compose the command that compares a trained controller in the setting it was trained in."""
    task = str(blueprint.settings["task"])
    changes: list[str] = []
    settings = stated(blueprint.settings)
    for name, value in asdict(find_task(task).federation).items():
        chosen = settings.get(name, value)
        if chosen != value and name not in _NOT_COMPARED:
            changes += [f"--{name.replace('_', '-')}", str(chosen)]
    if blueprint.settings.get("generator"):
        changes += ["--generator", str(blueprint.settings["generator"])]
    controllers = ["fixed", "best-fixed", "exponential-decay", "server-lr-decay", "aqc", f"{blueprint.algo}:{folder}"]
    return shlex.join(["dpilot", "compare", "--task", task, *changes, "--controllers", *controllers])


def finish(result: TrainingResult, folder: Path) -> dict[str, Any]:
    """Write the summary of a training, print it and return it."""
    cost = asdict(result.cost)
    summary = {
        "status": "complete",
        "validation_accuracy": result.best_score,
        "validation_accuracy_untrained": result.initial_score,
        "best_update": result.best_update,
        "population": result.controller.population,
        "rounds": cost,
        "parallel": result.parallel,
        "executor": result.executor,
        "seconds": result.seconds,
        "origins": result.controller.blueprint.settings.get("origins", {}),
        "history": result.history,
    }
    write_json(folder / SUMMARY, summary)
    print(
        f"Validation accuracy {result.best_score:.1%} (untrained {result.initial_score:.1%}), best after update "
        f"{result.best_update} of {len(result.history) - 1}; {sum(cost.values()):,} federated rounds of "
        f"{result.controller.population} clients in {result.seconds:.0f} s."
    )
    print(f"Controller: {result.folder}")
    return summary
