"""Instances of a comparison: settings of the task, each with held-out seeds of its own.

Instances are every combination of values that a user names, or drawn from a generator's test set.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs import Setting
from envs.generators import RUN_SETTINGS, parse_generator
from envs.instances import instance_seeds
from experiments.contenders.environments import Environments
from experiments.contenders.varied import read_varied
from experiments.records.comparison import Instance
from fl_core.base.errors import require
from fl_core.run.budget import restated
from fl_core.run.config import FederationConfig, RunSettings


@dataclass(frozen=True)
class Case:
    """One held-out run to be played."""

    seed: int
    instance: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    """Settings in which its instance differs from the task."""

    def run_settings(self) -> RunSettings:
        """Return its changes that a row of a batch can hold by itself, as settings of a run."""
        return RunSettings(seed=self.seed, **{name: value for name, value in self.changes if name in RUN_SETTINGS})

    def shared(self) -> tuple[tuple[str, Any], ...]:
        """Return its other changes, which all rows of a batch must share."""
        return tuple((name, value) for name, value in self.changes if name not in RUN_SETTINGS)


def deal(seeds: Sequence[int], instances: Sequence[Instance] = ()) -> list[Case]:
    """Give every instance its part of the seeds, in blocks of the same size, so that no two share one.

    Raises:
        InputError: the seeds cannot be dealt out equally.
    """
    if not instances:
        return [Case(seed) for seed in seeds]
    size, rest = divmod(len(seeds), len(instances))
    require(size > 0 and rest == 0, f"{len(seeds)} seeds cannot be dealt out equally to {len(instances)} instances.")
    return [
        Case(seed, one.name, tuple(one.changes.items()))
        for place, one in enumerate(instances)
        for seed in seeds[place * size : (place + 1) * size]
    ]


def batches(cases: Iterable[Case]) -> list[tuple[dict[str, Any], list[Case]]]:
    """Group cases by the settings that a batch must share, in order of appearance."""
    found: dict[tuple[tuple[str, Any], ...], list[Case]] = {}
    for case in cases:
        found.setdefault(case.shared(), []).append(case)
    return [(dict(shared), group) for shared, group in found.items()]


def check_instances(instances: Sequence[Instance], setting: Setting, environments: Environments) -> None:
    """Refuse an instance that the task's data or budget does not allow, before any run is played.

    Args:
        instances: those to be played.
        setting: that of one of the players.
        environments: where those to check in come from.

    Raises:
        InputError: as its federation says.
    """
    for shared, group in batches(deal(range(len(instances)), instances) if instances else []):
        core = environments.of(setting.replace(**shared))
        for case in group:
            core.reset([0], [case.run_settings()])


def vary(options: Sequence[str], config: FederationConfig) -> tuple[Instance, ...]:
    """Combine the values in options such as `epsilon=2,8` and `partition=iid,shards(1)`.

    Args:
        options: as typed.
        config: the task's settings; each combination must be allowed in it.

    Raises:
        InputError: an option cannot be read, a setting is unknown or shared by all, or a value is not allowed.
    """
    choices = read_varied(options)
    if not choices:
        return ()
    combinations = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    return tuple(_instance(changes, config) for changes in combinations)


def drawn(generator: str, count: int, config: FederationConfig, first: int = 0) -> tuple[Instance, ...]:
    """Draw instances of a generator's test set, numbered from 1.

    Args:
        generator: by name or as written.
        count: how many.
        config: the task's settings; each instance must be allowed in it.
        first: place in the set of the first of them.

    Raises:
        InputError: the generator cannot be read or draws nothing, or a value is not allowed.
    """
    found = parse_generator(generator)
    require(bool(found.axes), "generator is empty, so that there is nothing to draw.")
    require(
        all("rounds" not in shape for shape in found.shapes),
        f"generator is '{generator}', which draws rounds, but all instances of a comparison share them.",
    )
    instances = []
    for number, seed in enumerate(instance_seeds("test", count, first), start=1):
        one = _instance(found.draw(seed), config)
        instances.append(replace(one, name=f"{number}: {one.name}"))
    return tuple(instances)


def _instance(changes: Mapping[str, Any], config: FederationConfig) -> Instance:
    own = {name: value for name, value in changes.items() if name in RUN_SETTINGS}
    shared = replace(config, **restated({name: value for name, value in changes.items() if name not in own}))
    target = own.get("epsilon", shared.epsilon)
    RunSettings(seed=0, **own)  # these three refuse what the federation does not allow
    shared.check_epsilon(target)
    words = [
        f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in changes.items()
    ]
    return Instance(", ".join(words), target, dict(changes))
