"""Lists of what a federation is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from experiments.lists.rows import Rows, parts_of
from fl_core.base.sources import BUILT_IN
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
from fl_core.run.choices import CHOICES


def methods() -> Rows:
    """List the methods."""
    return parts_of(METHODS, ("method", "what it is"), _method)


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


def datasets() -> Rows:
    """List the datasets."""
    heading = ("dataset", "what it is", "classes", "normalization", "here?", "how to get it")
    yield from parts_of(DATASETS, heading, _dataset)
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


def models() -> Rows:
    """List the models."""
    yield from parts_of(MODELS, ("model", "what it is"), lambda name, entry: (name, entry.summary))
    yield ("MODEL-groupnorm", "any convolutional one with a GroupNorm after each convolution", BUILT_IN.words)
    yield ("FILE.py:NAME", "an nn.Module, or what makes one from (channels, height, width) and classes", "the file")


def partitions() -> Rows:
    """List the partitions."""
    yield ("partition", "what it does")
    yield from PARTITIONS.items()


def augmentations() -> Rows:
    """List the augmentations."""
    yield ("augmentation", "what it does")
    yield from ((name, one[-1]) for name, one in TRANSFORMS.items())


def accountants() -> Rows:
    """List the accountants."""
    yield ("accountant", "how it counts", "what it certifies")
    yield from ((name, one.summary, one.certifies) for name, one in ACCOUNTANTS.items())


def adjacencies() -> Rows:
    """List the adjacencies."""
    yield ("adjacency", "how neighbours differ", "what it hides")
    yield from ((name, one.summary, one.hides) for name, one in ADJACENCIES.items())


def choices() -> Rows:
    """List the choices."""
    yield ("option", "name", "what it stands for")
    telemetry = {name: one.summary for name, one in TELEMETRY.items()}
    for option, names in (CHOICES | {"telemetry": telemetry}).items():
        yield from ((option.replace("_", "-"), name, meaning) for name, meaning in names.items())
