"""`dpilot rank`: the best of several trainings, by the validation that each of them has kept."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agents.bundle import load_controller
from agents.checkpoint import CHECKPOINT
from agents.folders import RECORD
from agents.learned import LearnedController
from agents.trainer import CONTROLLER
from experiments.commands.train import compare_command
from experiments.options.rank import RankOptions
from experiments.reports.tables import Table
from experiments.reports.words import NONE, percent, points, rounds_text
from experiments.statistics.resampling import Scores, average, estimate, paired_difference
from fl_core.base.errors import InputError, require

_OF_THE_AGENT = ("knobs", "signals", "reward", "decision_rounds", "context", "telemetry", "telemetry_share")
_WHERE_IT_RAN = ("executor", "device", "memory_limit_mib", "image_memory_mib", "data_root")
_NO_PROBLEM = (*_OF_THE_AGENT, *_WHERE_IT_RAN, "instances", "instance_count", "evaluate_every_round", "noise_schedule")
"""Settings in which trainings for one problem may differ: what the agent sees and sets, and where it was trained."""


@dataclass(frozen=True)
class Ranked:
    """A finished training.

    Attributes:
        folder: as it was named.
        controller: its best policy on validation.
    """

    folder: Path
    controller: LearnedController

    @property
    def about(self) -> Mapping[str, Any]:
        """Seeds, cost and validation of the training."""
        return self.controller.blueprint.training

    @property
    def problem(self) -> dict[str, Any]:
        """Settings that trainings must share for their validation to be one measure."""
        own = {name: value for name, value in self.controller.blueprint.settings.items() if name not in _NO_PROBLEM}
        return {**own, "number of validation instances": len(self.about["validation_instances"])}

    @property
    def score(self) -> float:
        """Mean final accuracy on the validation instances, in [0, 1]."""
        return float(self.about["validation_accuracy"])

    @property
    def scores(self) -> Scores | None:
        """Final accuracy on each validation instance; None where the training has kept the mean alone."""
        kept, seeds = self.about.get("validation_accuracies"), self.about["validation_instances"]
        if not kept or len(kept) != len(seeds):
            return None
        return Scores({("", int(seed)): [float(value)] for seed, value in zip(seeds, kept, strict=True)})

    def setting_text(self) -> str:
        """What the agent sees and sets, in words."""
        view, task = self.controller.view, self.controller.blueprint.settings["task"]
        return f"{task}: {view['knobs']} from {view['signals']}, every {view['decision_rounds']}"


@dataclass(frozen=True)
class RankCommand(RankOptions):
    """The command with its options."""

    def execute(self) -> dict[str, Any]:
        """Print a table for each problem, and how to compare the best."""
        self.check()
        found, left_out = _finished(self.folders)
        reasons = "; ".join(f"{folder}: {reason}" for folder, reason in left_out.items())
        named = " or ".join(f"'{folder}'" for folder in self.folders)
        require(
            bool(found),
            f"There is no finished training with its validation in {named}" + (f" ({reasons})." if reasons else "."),
        )
        problems = _by_problem(found)
        if len(problems) > 1 and not self.mixed:
            _refuse_mixture(found)
        console = Console(soft_wrap=True, highlight=False)
        for place, group in enumerate(problems):
            console.print(
                _table(group, f"Problem {place + 1} of {len(problems)}" if len(problems) > 1 else "").terminal()
            )
        if reasons:
            print(f"Not ranked: {reasons}.")
        best = problems[0][0]
        print(f"To measure the best: {compare_command(best.controller.blueprint, best.folder)}")
        return {"problems": [[_record(one) for one in group] for group in problems], "not_ranked": _texts(left_out)}


def _texts(reasons: Mapping[Path, str]) -> dict[str, str]:
    return {str(folder): reason for folder, reason in reasons.items()}


def _finished(folders: Sequence[Path]) -> tuple[list[Ranked], dict[Path, str]]:
    """Load the finished trainings among folders; returns them, and why other trainings and controllers are left out."""
    found: list[Ranked] = []
    left_out: dict[Path, str] = {}
    for folder in folders:
        if not any((place / RECORD).is_file() for place in (folder, folder / CONTROLLER)):
            if (folder / CHECKPOINT).is_file():
                left_out[folder] = f"unfinished, dpilot train --resume {shlex.quote(str(folder))} goes on"
            continue
        try:
            one = Ranked(folder, load_controller(folder))
            _ = (one.problem, one.score, one.scores)
        except InputError as error:
            left_out[folder] = str(error).rstrip(".")
        except (KeyError, TypeError, ValueError):
            left_out[folder] = "no validation was kept, as of a policy that was imported"
        else:
            found.append(one)
    return found, left_out


def _by_problem(found: Sequence[Ranked]) -> list[list[Ranked]]:
    """Group trainings by their problem, the best of each first; groups in the order in which they were met."""
    groups: list[list[Ranked]] = []
    for one in found:
        own = next((group for group in groups if group[0].problem == one.problem), None)
        if own is None:
            groups.append([one])
        else:
            own.append(one)
    return [sorted(group, key=lambda one: -one.score) for group in groups]


def _refuse_mixture(found: Sequence[Ranked]) -> None:
    first = found[0]
    for one in found[1:]:
        for name in {**first.problem, **one.problem}:
            theirs, own = first.problem.get(name, "none"), one.problem.get(name, "none")
            if own != theirs:
                raise InputError(
                    f"'{one.folder}' was validated with {name} {own}, but '{first.folder}' with {theirs}, so their "
                    "accuracies are no one measure; name trainings for one problem, or give --mixed to rank each "
                    "problem by itself."
                )


def _table(group: Sequence[Ranked], title: str) -> Table:
    best = group[0]
    lines = tuple(
        (
            str(one.folder),
            one.controller.blueprint.algo,
            str(one.about.get("seed", "?")),
            one.setting_text(),
            percent(one.score, None if one.scores is None else estimate(one.scores, average).interval),
            _behind(one, best),
            rounds_text(one.controller.training_rounds),
        )
        for one in group
    )
    headers = ("training", "algorithm", "seed", "setting", "validation", "to the best", "rounds")
    instances = best.problem["number of validation instances"]
    return Table(
        headers,
        lines,
        words=("algorithm", "setting"),
        title=title,
        caption=f"accuracy in % on {instances} validation instances [95 % interval over them]; to the best: points per "
        "instance; rounds: federated rounds of the training",
    )


def _behind(one: Ranked, best: Ranked) -> str:
    own, theirs = one.scores, best.scores
    return NONE if one is best or own is None or theirs is None else points(paired_difference(own, theirs))


def _record(one: Ranked) -> dict[str, Any]:
    own = one.scores
    interval = None if own is None else list(estimate(own, average).interval)
    return {
        "folder": str(one.folder),
        "algorithm": one.controller.blueprint.algo,
        "seed": one.about.get("seed"),
        **one.controller.view,
        "validation_accuracy": one.score,
        "interval": interval,
        "training_rounds": one.controller.training_rounds,
    }
