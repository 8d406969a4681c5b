"""Lists of what environments are made of."""

from __future__ import annotations

from envs.context import context_features
from envs.generators import GENERATORS, SETTINGS, GeneratorEntry
from envs.knobs import EVERY_KNOB, FEW_METHODS, KNOB_GROUPS, known_knobs, make_knob, methods_with
from envs.rewards import REWARDS
from envs.signals import all_features
from envs.tasks import TASKS, find_task
from experiments.lists.rows import Rows, parts_of
from fl_core.base.values import read_list
from fl_core.recipes.catalog import METHODS
from fl_core.run.basis import basis_of
from fl_core.run.config import FederationConfig


def tasks() -> Rows:
    """List the tasks."""
    yield ("task", "what it is", "dataset", "epsilon", "epsilon holds for", "clip range")
    for task in TASKS.values():
        low, high = task.clip_range
        epsilon, basis = f"{task.federation.epsilon:g}", basis_of(task.federation)
        yield (task.name, task.summary, task.federation.dataset, epsilon, basis, f"{low:g} to {high:g}")


def knobs() -> Rows:
    """List the knobs."""
    yield ("knob", "what it sets", "range on the task digits", "default", "methods with it")
    task = find_task("digits")
    for one in known_knobs().values():
        knob = make_knob(task, one)
        summary = f"{knob.summary} (one per layer)" if one.per_layer else knob.summary
        methods = methods_with(one.name)
        few = ", ".join(methods) if len(methods) <= FEW_METHODS else f"{len(methods)} of {len(METHODS)}"
        yield (knob.name, summary, f"{knob.low:g} to {knob.high:g} ({knob.scale})", f"{knob.default:g}", few)
    for name, knobs in KNOB_GROUPS.items():
        yield (name, f"those that the method has of {', '.join(knobs)}", "", "", "")
    yield (EVERY_KNOB, "every knob of the method; telemetry_share only where telemetry is seen", "", "", "")


def signals() -> Rows:
    """List the signals."""
    yield ("signal", "class", "scale", "what it shows, x")
    yield from (tuple(feature.cells.values()) for feature in (*all_features(), *context_features("visible")))


def rewards() -> Rows:
    """List the rewards."""
    yield ("reward", "what it rewards", "what it costs")
    yield from ((name, reward.summary, reward.cost) for name, reward in REWARDS.items())


def generators() -> Rows:
    """List the generators."""
    yield from parts_of(GENERATORS, ("generator", "what its instances differ in", "as written"), _generator)
    ranges = ", ".join(name for name in SETTINGS if isinstance(getattr(FederationConfig, name), float))
    yield ("SETTING=LOW..HIGH", "your own: numbers between, log-uniform", f"of {ranges}", "")
    yield (
        "SETTING=A|B",
        "values, equally likely; several settings are separated by commas",
        f"of {', '.join(SETTINGS)}",
        "",
    )
    yield ("FILE.py:NAME", "such a text, or an envs.Generator", "", "the file")


def _generator(name: str, entry: GeneratorEntry) -> tuple[str, str, str]:
    spec = entry.spec
    return name, entry.summary, "\n".join(read_list("generator", spec)) if isinstance(spec, str) else ""
