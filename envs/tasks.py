"""Built-in tasks: a federation, a privacy budget and the range in which its clip norm is sought.

Adding a task is adding an entry here, and its name in `envs.kinds`. At each budget the best fixed clip norm lies
strictly inside the range. Tasks are deployed on target clients; environments for training are made of proxy clients
(see `envs.instances`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fl_core.base.arguments import check_fields, take_numbers
from fl_core.base.bounds import Bounds
from fl_core.base.errors import require, require_name
from fl_core.base.values import field_kinds, read_value
from fl_core.run.budget import UnstatedEpsilon, restated
from fl_core.run.config import FederationConfig
from fl_core.run.plan import CLIP_NORM

CLIP_END = Bounds(1e-9, 1e9, CLIP_NORM.why)


@dataclass(frozen=True)
class Task:
    """A named problem.

    Attributes:
        name: catalogue name.
        summary: one line for lists.
        federation: its settings.
        clip_range: lowest and highest clip norm a controller may choose.
        clip_norm: the clip norm that someone who has tuned nothing would take.
    """

    name: str
    summary: str
    federation: FederationConfig
    clip_range: tuple[float, float]
    clip_norm: float

    def __post_init__(self) -> None:
        take_numbers(self)
        check_fields(self)
        CLIP_NORM.check("clip_norm", self.clip_norm)
        low, high = self.clip_range
        for end in (low, high):
            CLIP_END.check("An end of clip_range", end)
        require(low < high, f"clip_range is {self.clip_range}, but its lowest clip norm must be below its highest.")
        require(
            low <= self.clip_norm <= high,
            f"clip_norm is {self.clip_norm:g}, but it must lie in clip_range, {low:g} to {high:g}.",
        )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="digits",
            summary="8x8 digits, 50 clients with 3 label shards each, MLP, 40 rounds; a minute on a CPU",
            federation=FederationConfig(population="target"),
            clip_range=(0.1, 8.0),
            clip_norm=1.0,
        ),
        Task(
            name="mnist5k",
            summary="28x28 MNIST digits, 200 clients with 3 label shards each, MLP, 40 rounds",
            federation=FederationConfig(
                dataset="mnist5k",
                population="target",
                clients=200,
                local_steps=4,
                batch_size=8,
                learning_rate=0.2,
                epsilon=UnstatedEpsilon(8.0),
            ),
            clip_range=(0.1, 8.0),
            clip_norm=1.0,
        ),
        Task(
            name="fashion-mnist",
            summary="28x28 clothing, 1,000 clients with 3 label shards each, 10 % of them per round, MLP, 60 rounds",
            federation=FederationConfig(
                dataset="fashion-mnist",
                population="target",
                clients=1000,
                sampling_rate=0.1,
                rounds=60,
                local_steps=4,
                batch_size=16,
                learning_rate=0.2,
                epsilon=UnstatedEpsilon(8.0),
                evaluation_samples=2000,
            ),
            clip_range=(0.1, 8.0),
            clip_norm=1.0,
        ),
    )
}

_KINDS = field_kinds(FederationConfig)


def default_federation() -> FederationConfig:
    """Return the settings of the default task."""
    return TASKS["digits"].federation


def find_task(name: str, **overrides: Any) -> Task:
    """Find a task by name and replace federation settings; overrides that are None keep the task's own.

    Raises:
        InputError: the task or a setting is unknown, or a value is not allowed.
    """
    require_name("task", name, TASKS)
    task = TASKS[name]
    changes = {}
    for field, value in overrides.items():
        require_name("setting", field, _KINDS)
        if value is not None:
            changes[field] = read_value(field, value, _KINDS[field])
    return replace(task, federation=replace(task.federation, **restated(changes))) if changes else task
