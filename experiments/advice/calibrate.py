"""Fit the constants of the advice: python -m experiments.advice.calibrate

Plays fixed clip norms on proxy clients of `digits` over budgets, travels, rounds, learning rates, heterogeneity and
numbers of clients, fits `Rule` to their final accuracies, and writes `rule.json` beside this file: constants, errors
and every cell. About ten minutes of processor time. Contexts whose cells are in the file are not played again.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares

from envs.instances import instance_seeds
from envs.tasks import find_task
from experiments.advice.evidence import read_pages
from experiments.advice.rule import FILE, LONGEST_CLIP, Rule
from experiments.advice.signal import Signal, Updates, changed, signal_of
from fl_core.base.files import read_json, write_json
from fl_core.data.partition import concentration
from fl_core.run.config import FederationConfig, RunSettings
from fl_core.run.federation import Federation
from fl_core.run.plan import FloatArray, RoundPlan

TASK, CLASSES = "digits", 10
SEARCHED = "best-fixed"
"""Controller whose clip norm was searched on proxy clients."""
CONTEXTS: tuple[Mapping[str, Any], ...] = (
    *({"rounds": rounds} for rounds in (10, 20, 40, 80, 160)),
    {"rounds": 40, "learning_rate": 0.1},
    {"rounds": 80, "learning_rate": 0.1},
    {"rounds": 40, "partition": "iid"},
    {"rounds": 40, "partition": "dirichlet(0.3)"},
    {"rounds": 40, "partition": "shards(2)"},
    {"rounds": 40, "clients": 20},
    {"rounds": 40, "clients": 200},
)
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
TRAVELS = (4.5, 9.0, 18.0, 36.0, 72.0)
"""Travels, in lengths of a gradient, that fixed clip norms are chosen for."""
SEEDS, FIRST = 3, 500
"""Training instances that every cell is played on, and the place of the first."""
UNCLIPPED = 1e6
LONGEST = 320
"""Rounds of the runs without noise that the gain is measured against, at least."""


@dataclass(frozen=True)
class Cell:
    """Mean of the runs of one budget and travel in one context.

    Attributes:
        context: settings in which it differs from the task.
        epsilon: ε.
        strength: Q.
        rounds: T.
        travel: X, in lengths of a gradient.
        multiple: clip norm over the calibrated length.
        accuracy: final global accuracy, mean over the seeds.
        kept: share of the gain over chance of the runs without noise.
        agreement: norm of the mean clipped update over C, mean over rounds and seeds.
    """

    context: str
    epsilon: float
    strength: float
    rounds: int
    travel: float
    multiple: float
    accuracy: float
    kept: float
    agreement: float


def main(out: Path) -> None:
    """Play the contexts that are not in the file, fit and write."""
    torch.set_num_threads(1)
    about: dict[str, Any] = read_json(out) if out.exists() else {"minutes": 0.0, "without_noise": {}, "cells": []}
    for context in CONTEXTS:
        name = ", ".join(f"{field} {value}" for field, value in context.items())
        if name in about["without_noise"]:
            continue
        began, config = time.monotonic(), find_task(TASK, population="proxy", **context).federation
        about["without_noise"][name] = _without_noise(config)
        found = list(_cells(name, config, about["without_noise"][name]))
        about["cells"] += [list(asdict(one).values()) for one in found]
        about["minutes"] += (time.monotonic() - began) / 60
        _write(out, about)
    _write(out, about)


def _write(out: Path, about: dict[str, Any]) -> None:
    """Fit the rule to the cells, rounded as they are kept, and write everything."""
    cells = [Cell(*one) for one in _short(about["cells"])]
    rule, error = fit(cells)
    free = dict(about.get("without_noise_on_pages", {}))
    searched = list(_searched(free))
    told = {
        "constants": asdict(widened(rule, searched)),
        "error": error,
        "runs": SEEDS * (len(cells) + len(about["without_noise"])),
        "clients": f"proxy clients of {TASK}, {SEEDS} training instances from place {FIRST} on",
        "command": "python -m experiments.advice.calibrate",
        "minutes": about["minutes"],
        "without_noise": about["without_noise"],
        "without_noise_on_pages": free,
        "searched": [list(asdict(one).values()) for one in searched],
        "searched_columns": [one.name for one in fields(Searched)],
        "columns": [one.name for one in fields(Cell)],
        "cells": about["cells"],
    }
    write_json(out, _short(told))
    print(f"{told['constants']}; rms error of the share {error:.3f}; {out}")


def _short(value: Any) -> Any:
    """Round numbers to four digits, in lists and mappings too."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _without_noise(config: FederationConfig) -> float:
    """Train without noise or clip; returns the final accuracy, mean over the seeds."""
    config = changed(config, rounds=max(LONGEST, config.rounds), epsilon=math.inf)
    figures, _ = _play(config, [(math.inf, UNCLIPPED)])
    return float(figures["global_accuracy"].mean())


def _cells(name: str, config: FederationConfig, free: float) -> Iterator[Cell]:
    """Play every budget and travel side by side, as rows of one batch."""
    updates, rounds = Updates.of(config), config.rounds
    pairs = list(itertools.product(EPSILONS, TRAVELS))
    clips = [(epsilon, travel / (updates.step * rounds) * updates.norm) for epsilon, travel in pairs]
    figures, signals = _play(config, clips)
    for index, (epsilon, travel) in enumerate(pairs):
        own = slice(index * SEEDS, (index + 1) * SEEDS)
        noise = float(figures["noise_multiplier"][own][0])
        signal = Signal(noise, config.cohort, rounds, updates.noised)
        accuracy, chance = float(figures["global_accuracy"][own].mean()), 1 / CLASSES
        kept = (accuracy - chance) / (free - chance)
        agreement = float(signals[:, own].mean()) / signal.of_round
        multiple = travel / (updates.step * rounds)
        yield Cell(name, epsilon, signal.strength, rounds, travel, multiple, accuracy, kept, agreement)


def _play(config: FederationConfig, clips: list[tuple[float, float]]) -> tuple[dict[str, FloatArray], FloatArray]:
    """Play fixed clip norms on every seed; returns the last round's figures and the S/N of all `[rounds, runs]`."""
    seeds = instance_seeds("train", SEEDS, FIRST)
    runs = [RunSettings(seed=seed, epsilon=epsilon) for epsilon, _ in clips for seed in seeds]
    norms = np.repeat([clip for _, clip in clips], SEEDS)
    federation = Federation(config, len(runs))
    federation.start(range(len(runs)), runs)
    plan, signals = RoundPlan(norms, np.ones(len(runs))), []
    for done in range(config.rounds):
        report = federation.run_round(plan, evaluate=done == config.rounds - 1)
        signals.append(report.figures["signal_to_noise"])
    return dict(report.figures), np.array(signals)


def fit(cells: list[Cell]) -> tuple[Rule, float]:
    """Fit the rule by least squares of what is kept; returns it and the root mean square error.

    Clip norms longer than the updates are left out: they travel no further, and only add noise.
    """
    cells = [one for one in cells if one.multiple <= LONGEST_CLIP]
    near_best = [one for one in cells if one.kept > 0.8 * max(_kept_beside(one, cells))]
    decline, level = np.polyfit([_held(one) for one in near_best], [math.log(one.agreement) for one in near_best], 1)
    law = {"agreement": math.exp(level), "decline": -float(decline)}

    def rule(logs: FloatArray) -> Rule:
        half, rounds, travel, short, long = map(float, np.exp(logs[:5]))
        return Rule(half, rounds, travel, float(logs[5]), short, long, **law)

    kept = [one.kept for one in cells]

    def errors(logs: FloatArray) -> FloatArray:
        made = rule(logs)
        signals = [made.agreement_of(_held(one)) * one.strength for one in cells]
        told = [made.kept_at(signal, one.rounds, one.travel) for signal, one in zip(signals, cells, strict=True)]
        return np.asarray(np.subtract(told, kept), dtype=np.float64)

    found = least_squares(errors, [*np.log([0.3, 10.0, 30.0, 2.0, 1.0]), 0.5])
    return rule(found.x), float(np.sqrt(np.mean(found.fun**2)))


@dataclass(frozen=True)
class Searched:
    """The best fixed clip norm that a committed page has found on proxy clients, and what it kept.

    Attributes:
        page: its name.
        strength: Q of the setting.
        concentration: rate of how few classes a client holds.
        rounds: T.
        gradient: g.
        noised: d.
        gradients: the travel at that clip norm, in lengths of a gradient.
        kept: share of the gain over chance of runs without noise.
    """

    page: str
    strength: float
    concentration: float
    rounds: int
    gradient: float
    noised: float
    gradients: float
    kept: float


def _searched(free: dict[str, float]) -> Iterator[Searched]:
    """Read what the pages found with the task's own method; plays without noise on proxy clients where `free` lacks it.

    Norms are in the model's own units.
    """
    for one in read_pages():
        config = one.config
        if SEARCHED not in one.labels or config.method != find_task(TASK).federation.method:
            continue
        own = changed(config, population="proxy", epsilon=math.inf, executor="auto")
        setting = f"{config.dataset}, {config.model}, {config.clients} clients, {config.rounds} rounds"
        if setting not in free:
            free[setting] = _without_noise(own)
        updates, chance = Updates.of(config), 1 / Updates.of(config).classes
        accuracies = list(one.accuracy[SEARCHED].values())
        yield Searched(
            one.page,
            signal_of(config, updates.noised).strength,
            concentration(config.partition, updates.classes),
            config.rounds,
            updates.gradient,
            updates.noised,
            float(one.labels[SEARCHED].split()[-1]) / config.update_scale * config.rounds / updates.gradient,
            (sum(accuracies) / len(accuracies) - chance) / (free[setting] - chance),
        )


def widened(rule: Rule, searched: list[Searched]) -> Rule:
    """Fit ν and ρ to what other data and models kept and how far they travelled.

    By least squares, of the shares for ν, as a share near 1 tells little of the signal, and of logarithms for ρ.
    """
    reference = Updates.of(find_task(TASK).federation)
    sizes = np.array([math.log(one.noised / reference.noised) for one in searched])
    steep = np.array([math.log(one.gradient / reference.gradient) for one in searched])
    expected = [rule.agreement_of(one.concentration) * one.strength for one in searched]
    kept = [one.kept for one in searched]

    def errors(sparing: FloatArray) -> FloatArray:
        felt = np.array(expected) * np.exp(sparing * sizes)
        told = [rule.kept(float(signal), one.rounds) for signal, one in zip(felt, searched, strict=True)]
        return np.asarray(np.subtract(told, kept), dtype=np.float64)

    sparing = float(least_squares(errors, [0.0]).x[0])
    felt = np.array(expected) * np.exp(sparing * sizes)
    missing = [math.log(rule.best_travel(signal) / one.gradients) for signal, one in zip(felt, searched, strict=True)]
    steepness = float(steep @ np.array(missing) / (steep @ steep))
    return replace(
        rule, steepness=steepness, gradient=reference.gradient, sparing=sparing, size=round(reference.noised, 1)
    )


def _held(cell: Cell) -> float:
    """Work out how few classes a client of a cell holds."""
    return concentration(read_partition(cell.context), CLASSES)


def read_partition(context: str) -> str:
    """Find the partition in the words of a context; that of the task where there is none."""
    _, named, partition = context.partition("partition ")
    return partition if named else find_task(TASK).federation.partition


def _kept_beside(cell: Cell, cells: list[Cell]) -> list[float]:
    """List what other travels keep in a cell's context and budget."""
    return [one.kept for one in cells if (one.context, one.epsilon) == (cell.context, cell.epsilon)]


if __name__ == "__main__":
    main(Path(__file__).with_name(FILE))
