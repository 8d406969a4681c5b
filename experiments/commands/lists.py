"""`dpilot list`: the entries of every catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import tyro

from agents.algorithms import ALGORITHMS, default_text
from agents.curricula import CURRICULA
from agents.exported import EXPORTED
from agents.loggers import LOGGERS
from agents.online import KNOBS, NAME
from envs.context import context_features
from envs.generators import GENERATORS, SETTINGS, GeneratorEntry
from envs.knobs import EVERY_KNOB, FEW_METHODS, KNOB_GROUPS, known_knobs, make_knob, methods_with
from envs.rewards import REWARDS
from envs.signals import all_features
from envs.tasks import TASKS, find_task
from experiments.contenders.contenders import LEARNED, TUNED
from experiments.papers.measures import MEASURES
from experiments.papers.tables import find_table, table_names
from experiments.reports.tables import Table
from experiments.terminal import console
from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import require_name
from fl_core.base.sources import BUILT_IN
from fl_core.base.values import read_list
from fl_core.data.augmentation import TRANSFORMS
from fl_core.data.datasets import DATASETS, dataset_available
from fl_core.data.partition import PARTITIONS
from fl_core.data.samples import DatasetEntry
from fl_core.models.catalog import MODELS
from fl_core.privacy.accountants import ACCOUNTANTS
from fl_core.privacy.adjacency import ADJACENCIES
from fl_core.privacy.telemetry import TELEMETRY
from fl_core.recipes.catalog import METHODS
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.recipe import Recipe
from fl_core.run.basis import basis_of
from fl_core.run.choices import CHOICES
from fl_core.run.config import FederationConfig
from policies.base import Controller
from policies.catalog import CONTROLLERS, ControllerSpec

Rows = Iterable[tuple[str, ...]]


def _tasks() -> Rows:
    yield ("task", "what it is", "dataset", "epsilon", "epsilon holds for", "clip range")
    for task in TASKS.values():
        low, high = task.clip_range
        epsilon, basis = f"{task.federation.epsilon:g}", basis_of(task.federation)
        yield (task.name, task.summary, task.federation.dataset, epsilon, basis, f"{low:g} to {high:g}")


Part = TypeVar("Part")


def _parts_of(catalogue: Catalogue[Part], heading: Sequence[str], cells: Callable[[str, Part], Sequence[str]]) -> Rows:
    """List a catalogue that takes parts of users: `cells` gives a name and what is told of it, origins come last."""
    yield (*heading, "from")
    for one in catalogue.listed():
        if one.part is None:
            yield (one.name, one.broken, *[""] * (len(heading) - 2), one.origin.words)
        else:
            yield (*cells(one.name, one.part), one.origin.words)


def _methods() -> Rows:
    return _parts_of(METHODS, ("method", "what it is"), _method)


def _method(name: str, recipe: Recipe) -> tuple[str, str]:
    published = recipe.in_mode("as-published")
    lines = {
        "parts": ", ".join(_parts(recipe)),
        "options": ", ".join(_options(recipe)) or "none",
        "knobs": ", ".join(knob.name for knob in recipe.knobs) or "none",
        "releases": ", ".join(recipe.releases) or ("updates without noise" if recipe.exchanges else "nothing"),
    }
    if recipe.private:
        lines["as published"] = "; ".join(recipe.published) or "the same"
        lines["then uncovered"] = "; ".join(published.uncovered("distributed", False)) or "nothing"
    details = [f"{title}: {text}" for title, text in lines.items()]
    return name, "\n".join([f"{recipe.summary} ({recipe.source})", *details, ""])


def _options(recipe: Recipe) -> Iterable[str]:
    """List the fields that `--set` can change in the parts that are not neutral, with the recipe's values."""
    named: list[tuple[str, Any]] = [("personalization", recipe.personalization)]
    if recipe.sparsification.kind != "none":
        named.append(("sparsification", recipe.sparsification))
    named += [(term.kind, term) for term in recipe.objective.terms]
    for owner, part in named:
        for field in fields(part):
            value, neutral = getattr(part, field.name), getattr(Personalization(), field.name, None)
            if owner != "personalization" or value != neutral:
                yield f"{owner}.{field.name}={value}"


def _parts(recipe: Recipe) -> Iterable[str]:
    """Name the parts that are not neutral, one text each."""
    personalization = recipe.personalization
    if personalization != Personalization():
        local = f" ({personalization.local})" if personalization.local != "none" else ""
        yield f"{personalization.kind}{local}"
    yield " + ".join([recipe.objective.schedule, *(term.kind for term in recipe.objective.terms)])
    if recipe.sparsification.kind != "none":
        yield f"{recipe.sparsification.kind} sparsification"
    if recipe.exchanges:
        yield f"{recipe.mechanism.clip} clip" if recipe.private else "no clip"


def _controllers() -> Rows:
    yield from _parts_of(CONTROLLERS, ("controller", "what it does", "signals", "knobs"), _controller)
    own = ("its own", "its own")
    yield (f"{TUNED}:FAMILY", "any of these, its parameters searched on training instances", *own, BUILT_IN.words)
    summary = "PPO that learns the clip norm within the very run, as ACDP-pFSD does, from accuracy and loss"
    yield (f"{NAME}[:accounted|:paper][:SEED]", summary, "by the guarantee", KNOBS, BUILT_IN.words)
    for algorithm in LEARNED:
        made = "`dpilot import`" if algorithm in EXPORTED else f"`dpilot train --algo {algorithm}` or `dpilot import`"
        yield (f"{algorithm}:FOLDER", f"saved by {made}", *own, "the folder")
    yield ("FILE.py:NAME[:PARAMETER...]", "a class made from policies.Controller", *own, "the file")


def _controller(name: str, controller: type[Controller]) -> tuple[str, ...]:
    knobs = "those named" if controller.assigns else ControllerSpec(name).knobs.replace(",", ", ")
    usage = name + controller.usage().removeprefix(controller.name)
    return usage, controller.summary, controller.needed_signals, knobs


def _algorithms() -> Rows:
    yield ("algorithm", "what it is", "its options", "here?")
    for name, one in ALGORITHMS.items():
        usual = (f"{option.replace('_', '-')} {default_text(value)}" for option, value in one.options.items())
        here = find_spec(one.place.partition(":")[0]) is not None
        yield (name, one.summary, ", ".join(usual), "yes" if here else "no: install the extra zoo")


def _loggers() -> Rows:
    yield ("logger", "where it keeps what it is sent", "here?")
    for name, one in LOGGERS.items():
        yield (name, one.summary, "yes" if find_spec(one.package) else f"no: install the extra {name}")


def _curricula() -> Rows:
    yield ("curriculum", "which training instances it plays")
    yield from ((name, one.summary) for name, one in CURRICULA.items())


def _datasets() -> Rows:
    heading = ("dataset", "what it is", "classes", "normalization", "here?", "how to get it")
    yield from _parts_of(DATASETS, heading, _dataset)
    arrays = "arrays images, labels and, if you like, clients, test_images, test_labels, test_clients"
    rest = ("as labelled", "", "", "")
    yield ("FILE.npz", arrays, *rest, "the file")
    yield ("FOLDER", "images, and labels.csv with the columns file,label[,client][,part]", *rest, "it")
    yield ("FILE.py:NAME", "arrays, or a function that returns them", *rest, "the file")


def _dataset(name: str, entry: DatasetEntry) -> tuple[str, ...]:
    here = dataset_available(name)
    classes = str(entry.classes) if entry.classes else "as labelled"
    constants = "" if entry.normalization is None else f"{entry.normalization} ({entry.normalization.source})"
    return name, entry.description, classes, constants, "yes" if here else "no", "" if here else entry.how_to_get


def _models() -> Rows:
    yield from _parts_of(MODELS, ("model", "what it is"), lambda name, entry: (name, entry.summary))
    yield ("MODEL-groupnorm", "any convolutional one with a GroupNorm after each convolution", BUILT_IN.words)
    yield ("FILE.py:NAME", "an nn.Module, or what makes one from (channels, height, width) and classes", "the file")


def _partitions() -> Rows:
    yield ("partition", "what it does")
    yield from PARTITIONS.items()


def _augmentations() -> Rows:
    yield ("augmentation", "what it does")
    yield from ((name, one[-1]) for name, one in TRANSFORMS.items())


def _knobs() -> Rows:
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


def _signals() -> Rows:
    yield ("signal", "class", "scale", "what it shows, x")
    yield from (tuple(feature.cells.values()) for feature in (*all_features(), *context_features("visible")))


def _generators() -> Rows:
    yield from _parts_of(GENERATORS, ("generator", "what its instances differ in", "as written"), _generator)
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


def _papers() -> Rows:
    yield ("table", "paper", "where", "what it shows", "datasets", "here?")
    for table in map(find_table, table_names()):
        datasets = list(dict.fromkeys(block.dataset for block in table.blocks.values()))
        here = all(map(dataset_available, datasets))
        yield (table.name, table.paper, table.where, table.title, ", ".join(datasets), "yes" if here else "no")


def _measures() -> Rows:
    yield ("measure", "what it is", "unit", "curve?", "target?")
    for name, one in MEASURES.items():
        yield (name, one.summary, one.unit, "yes" if one.after else "no", "yes" if one.has_target else "no")


def _accountants() -> Rows:
    yield ("accountant", "how it counts", "what it certifies")
    yield from ((name, one.summary, one.certifies) for name, one in ACCOUNTANTS.items())


def _adjacencies() -> Rows:
    yield ("adjacency", "how neighbours differ", "what it hides")
    yield from ((name, one.summary, one.hides) for name, one in ADJACENCIES.items())


def _choices() -> Rows:
    yield ("option", "name", "what it stands for")
    telemetry = {name: one.summary for name, one in TELEMETRY.items()}
    for option, names in (CHOICES | {"telemetry": telemetry}).items():
        yield from ((option.replace("_", "-"), name, meaning) for name, meaning in names.items())


def _rewards() -> Rows:
    yield ("reward", "what it rewards", "what it costs")
    yield from ((name, reward.summary, reward.cost) for name, reward in REWARDS.items())


LISTS: dict[str, Callable[[], Rows]] = {
    "tasks": _tasks,
    "methods": _methods,
    "controllers": _controllers,
    "algorithms": _algorithms,
    "curricula": _curricula,
    "loggers": _loggers,
    "datasets": _datasets,
    "models": _models,
    "partitions": _partitions,
    "augmentations": _augmentations,
    "knobs": _knobs,
    "signals": _signals,
    "rewards": _rewards,
    "generators": _generators,
    "papers": _papers,
    "measures": _measures,
    "accountants": _accountants,
    "adjacencies": _adjacencies,
    "choices": _choices,
}


def _lists() -> Rows:
    yield ("dpilot list", "what there is")
    for name, rows in LISTS.items():
        _, *entries = rows()
        yield (name, ", ".join(dict.fromkeys(entry[0] for entry in entries)))


WHAT_HELP = f"One of: {', '.join(LISTS)}. Without one, the names in each of these lists."


@dataclass(frozen=True)
class ListCommand:
    """The entries of a catalogue, such as tasks, methods or controllers."""

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help=WHAT_HELP)] = ""

    def execute(self) -> list[dict[str, str]]:
        """Print the list, and return its entries by the names of the columns."""
        if self.what:
            require_name("list", self.what, LISTS)
        heading, *entries = LISTS[self.what]() if self.what else _lists()
        print_list((heading, *entries))
        return [dict(zip(heading, entry, strict=True)) for entry in entries]


def print_list(rows: Rows) -> None:
    """Print a table of texts; the first of the rows is its heading."""
    heading, *entries = rows
    table = Table(heading, tuple(entries), words=heading)
    console(120).print(table.terminal())
