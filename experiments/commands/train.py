"""`dpilot train`: train a controller, and print the command that compares it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agents.blueprint import Blueprint
from agents.bundle import load_controller
from agents.checkpoint import CHECKPOINT
from agents.config import TrainingConfig
from agents.results import TrainingResult
from agents.trainer import CONTROLLER
from agents.training import require_knobs, resume, train
from envs import EnvCore, Setting
from envs.playing import RowProgress
from experiments.commands.interruptions import resumable
from experiments.commands.train_seeds import MADE_IN, OPTIONS, SEEDS, holds_several, is_complete, train_seeds
from experiments.commands.typed import typed_options
from experiments.options.compare import DEFAULT_CONTROLLERS
from experiments.options.train import TrainOptions
from experiments.records.consistency import SUMMARY
from experiments.records.folder import make_run_folder, write_yaml
from experiments.records.order import FILE as ORDER
from experiments.records.order import described, read_order, require_same_order, write_order
from experiments.workers.starting import start_workers
from fl_core.base.code_version import code_version
from fl_core.base.files import read_json, write_json

_NOT_COMPARED = ("executor", "device", "memory_limit_mib", "image_memory_mib", "data_root", "population")
"""Settings of a training that its comparison does not take over: it is judged on other clients, maybe elsewhere."""


@dataclass(frozen=True)
class TrainCommand(TrainOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Train, write the summary, print it and return it."""
        self.check()
        if self.resume is not None:
            folder = self.resume
            if holds_several(folder):
                return self._train_seeds(folder)
            self.workers.require_none("training", "--seeds")
            if is_complete(folder):
                print(
                    f"The training in '{folder}' is complete, so nothing was changed. Controller: {folder / CONTROLLER}"
                )
                return {"folder": str(folder), **read_json(folder / SUMMARY)}
        else:
            require_knobs(EnvCore(self.setting()))  # refuses what does not fit before a folder is made
            if self.seeds > 1:
                return self._train_seeds(None)
            folder = self.new_folder()
        result, summary = train_in(folder)
        print(f"To look at it: tensorboard --logdir {folder.parent}")
        print(f"To compare it: {compare_command(result.controller.blueprint, folder)}")
        return {"folder": str(folder), **summary}

    def _train_seeds(self, folder: Path | None) -> dict[str, Any]:
        """Train several controllers in a folder; None makes a new one, once the workers have started."""
        with start_workers(self.workers) as backend:
            folder = folder or self.new_folder(range(self.training.seed, self.training.seed + self.seeds))
            summaries = train_seeds(folder, backend, _trained, self.workers.typed)
        first = next(folder.glob(f"seed-*/{CONTROLLER}"))
        print(f"To look at them: tensorboard --logdir {folder}")
        print(f"To compare them: {compare_command(load_controller(first).blueprint, folder / 'seed-*')}")
        return summaries

    def new_folder(self, seeds: Sequence[int] = ()) -> Path:
        """Make the folder of a training, or of several with these seeds, with its configuration in it."""
        name = f"seeds-{seeds[0]}-{seeds[-1]}" if seeds else self.training.seed
        folder = make_run_folder(self.runs, self.task, self.training.algo, name)
        write_yaml(folder / "config.yaml", {"command": "train", **asdict(self)})
        options: dict[str, Any] = {"settings": self.setting().as_record(), "training": asdict(self.training)}
        options |= {SEEDS: list(seeds)} if seeds else {}
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


def _trained(folder: Path, progress: RowProgress) -> dict[str, Any]:
    """Train one of several, as a job; returns its summary."""
    _, summary = train_in(folder)
    progress(sum(summary["rounds"].values()))
    return summary


def _begin(folder: Path) -> TrainingResult:
    """Train from the beginning; what an interruption before the first checkpoint has left is removed."""
    options, made_of = read_order(folder, "train", OPTIONS, MADE_IN)
    require_same_order(folder, "training", made_of, {"code": code_version()})
    with described(folder, "training"):
        network = options["training"]["network"]
        training = TrainingConfig(**options["training"] | {"network": None if network is None else tuple(network)})
        setting = Setting.resumed(options["settings"], folder)
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


def compare_command(blueprint: Blueprint, folder: Path) -> str:
    """Compose the command that compares a trained controller in the setting it was trained in."""
    task = str(blueprint.settings["task"])
    changes = typed_options(task, blueprint.settings, _NOT_COMPARED)
    if blueprint.settings.get("generator"):
        changes += ["--generator", str(blueprint.settings["generator"])]
    controllers = [*DEFAULT_CONTROLLERS, f"{blueprint.algo}:{folder}"]
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
