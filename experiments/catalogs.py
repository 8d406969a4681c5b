"""`dpilot list`: what there is to choose from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from envs.knobs import KNOBS
from envs.rewards import REWARDS
from envs.signals import all_features
from envs.tasks import TASKS, find_task
from experiments.contenders import LEARNED
from fl_core.data.datasets import DATASETS, dataset_available
from fl_core.data.partition import PARTITIONS
from fl_core.errors import require, unknown_name
from fl_core.models import MODELS
from fl_core.recipes.catalog import METHODS
from policies.catalog import CONTROLLERS

Rows = Iterable[tuple[str, ...]]


def _tasks() -> Rows:
    yield ("task", "what it is", "dataset", "epsilon", "clip range")
    for task in TASKS.values():
        low, high = task.clip_range
        yield (task.name, task.summary, task.federation.dataset, f"{task.federation.epsilon:g}", f"{low:g} to {high:g}")


def _methods() -> Rows:
    yield ("method", "what it does", "source", "knobs")
    for recipe in METHODS.values():
        yield (recipe.name, recipe.summary, recipe.source, ", ".join(recipe.knobs) or "none")


def _controllers() -> Rows:
    yield ("controller", "what it does", "signals", "knobs")
    for controller in CONTROLLERS.values():
        yield (controller.usage(), controller.summary, controller.needed_signals, controller.needed_knobs or "none")
    for algorithm in LEARNED:
        yield (f"{algorithm}:FOLDER", f"saved by `dpilot train --algo {algorithm}`", "its own", "its own")


def _datasets() -> Rows:
    yield ("dataset", "what it is", "classes", "here?", "how to get it")
    for name, entry in DATASETS.items():
        here = dataset_available(name)
        yield (name, entry.description, str(entry.classes), "yes" if here else "no", "" if here else entry.how_to_get)


def _models() -> Rows:
    yield ("model", "what it is")
    yield from ((name, entry.summary) for name, entry in MODELS.items())
    yield ("MODEL-groupnorm", "any convolutional one with a GroupNorm after each convolution")


def _partitions() -> Rows:
    yield ("partition", "what it does")
    yield from PARTITIONS.items()


def _knobs() -> Rows:
    yield ("knob", "what it sets", "range on the task digits", "default")
    task = find_task("digits")
    for make in KNOBS.values():
        knob = make(task)
        yield (knob.name, knob.summary, f"{knob.low:g} to {knob.high:g} ({knob.scale})", f"{knob.default:g}")


def _signals() -> Rows:
    yield ("signal", "class", "what it shows")
    yield from ((feature.name, feature.signal_class, feature.summary) for feature in all_features())


def _rewards() -> Rows:
    yield ("reward", "what it rewards")
    yield from ((name, reward.summary) for name, reward in REWARDS.items())


LISTS: dict[str, Callable[[], Rows]] = {
    "tasks": _tasks,
    "methods": _methods,
    "controllers": _controllers,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "knobs": _knobs,
    "signals": _signals,
    "rewards": _rewards,
}


@dataclass(frozen=True)
class ListCommand:
    """What there is to choose from."""

    what: Annotated[str, tyro.conf.Positional] = ""
    """One of: tasks, methods, controllers, datasets, models, partitions, knobs, signals, rewards."""

    def execute(self) -> None:
        """Print the list."""
        require(self.what != "", f"dpilot list needs one of {', '.join(LISTS)}.")
        if self.what not in LISTS:
            raise unknown_name("list", self.what, LISTS)
        heading, *rows = LISTS[self.what]()
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in heading:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 120).print(table)
