"""Trainings of one controller that differ in their seeds alone, each in a folder of its own, as jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agents.trainer import CONTROLLER
from envs.playing import RowProgress
from experiments.commands.interruptions import counted, resumable
from experiments.contenders.progress import jobs_bar
from experiments.records.consistency import SUMMARY
from experiments.records.finished import Job
from experiments.records.folder import says_complete
from experiments.records.order import FILE as ORDER
from experiments.records.order import read_order, write_order
from experiments.workers.backends import Backend
from experiments.workers.runner import Runner, Work
from experiments.workers.serving import in_shared_folder
from fl_core.base.files import read_json
from fl_core.run.ranges import SEED

SEEDS = "seeds"
"""Option in the order of several trainings that one alone does not have."""
OPTIONS = {"settings": "dict[str, Any]", "training": "dict[str, Any]"}
MADE_IN = {"code": "str"}
"""Types of what the order of a training holds."""

Train = Callable[[Path, RowProgress], dict[str, Any]]
"""Trains as a folder's order says; returns the summary."""


def is_complete(folder: Path) -> bool:
    """Return True if a folder holds a training that has ended, and its controller."""
    return (folder / CONTROLLER).is_dir() and says_complete(folder / SUMMARY)


def holds_several(folder: Path) -> bool:
    """Return True if a folder was made for several trainings; raises as `read_order` where it was made for nothing."""
    if (folder / CONTROLLER).exists() or not (folder / ORDER).exists():
        return False
    return bool(read_order(folder, "train", OPTIONS | {SEEDS: "Any"}, MADE_IN)[0].get(SEEDS))


def train_seeds(folder: Path, backend: Backend | None, train: Train, typed: Sequence[str]) -> dict[str, Any]:
    """Train all seeds of a folder's order that are not complete; returns the summaries of all, by folder.

    Args:
        folder: of all of them; one of each goes below it.
        backend: where they are trained; None for this process.
        train: trains one.
        typed: options of the workers, for who goes on.

    Raises:
        JobsFailed: some failed; the others are complete.
        InputError: the order describes no trainings.
    """
    folders = _folders(folder)
    works = [_work(one, train) for one in folders if not is_complete(one)]
    with (
        resumable("train", folder, partial(_kept, folders), typed),
        jobs_bar(len(works), f"{len(folders)} trainings", "job") as watch,
    ):
        Runner(backend=backend, alike=False).run(works, watch)  # each says in its summary which executor it had
    return {"folder": str(folder), "trainings": {one.name: read_json(one / SUMMARY) for one in folders}}


def _work(folder: Path, train: Train) -> Work:
    call = partial(in_shared_folder, folder.absolute(), partial(train, folder))
    return Work(Job(folder.name, {"folder": str(folder)}), call, f"training {folder.name}")


def _folders(folder: Path) -> list[Path]:
    """Make the folders of the trainings with their orders, where they are not there yet."""
    options, made_of = read_order(folder, "train", OPTIONS | {SEEDS: "tuple[int, ...]"}, MADE_IN)
    seeds = options.pop(SEEDS)
    for seed in seeds:
        SEED.check(f"The order in '{folder}': seeds", seed)
    training = options["training"]
    orders = {folder / f"seed-{seed}": options | {"training": training | {"seed": seed}} for seed in seeds}
    for one, order in orders.items():
        if not (one / ORDER).exists():
            one.mkdir(exist_ok=True)
            write_order(one, "train", order, made_of)
    return list(orders)


def _kept(folders: list[Path]) -> str:
    return counted(sum(map(is_complete, folders)), "complete training")
