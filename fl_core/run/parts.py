"""Parts of a federation that a user may bring: dataset, model and method."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from fl_core.base.catalogue import Catalogue
from fl_core.base.sources import split_spec
from fl_core.data.datasets import DATASETS
from fl_core.models.catalog import GROUP_NORM_SUFFIX, MODELS, find_model
from fl_core.recipes.catalog import METHODS

PARTS: Mapping[str, Catalogue[Any]] = {"dataset": DATASETS, "model": MODELS, "method": METHODS}
"""Setting -> the catalogue that reads its names."""


def part_names(settings: Mapping[str, Any], parts: Mapping[str, Catalogue[Any]] = PARTS) -> dict[str, Any]:
    """Return settings with names in the place of objects that are parts; code that is named is imported.

    Raises:
        InputError: an object is no part of that kind, or code cannot be imported.
    """
    for name, value in settings.items():
        if name in parts and isinstance(value, str) and split_spec(value) is not None:
            parts[name].find(value)
    return {
        name: value if name not in parts or value is None else parts[name].name_of(value)
        for name, value in settings.items()
    }


def warn_of_clients(dataset: str, partition: str) -> None:
    """Warn of a user's natural clients that a partition leaves aside."""
    if partition not in ("natural", "largest"):
        warnings.warn(
            f"dataset '{dataset}' says whose each sample is, but partition '{partition}' deals them out anew; natural "
            "makes everybody a client.",
            stacklevel=3,
        )


def check_parts(config: Any) -> None:
    """Find the parts of a configuration, and put names in the place of objects.

    Raises:
        InputError: a part is unknown, cannot be imported, or is none of that kind.
    """
    for field, catalogue in PARTS.items():
        object.__setattr__(config, field, catalogue.name_of(getattr(config, field)))
    find_model(config.model)
    DATASETS.find(config.dataset)
    METHODS.find(config.method)


def origins_of(settings: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Map the names of the parts in settings that are not built in to the records of their origins."""
    found: dict[str, dict[str, str]] = {}
    for field, catalogue in PARTS.items():
        for name in _names(settings.get(field, ())):
            found |= catalogue.origins_of(_base(name, catalogue))
    return found


def require_loaded(settings: Mapping[str, Any]) -> None:
    """Refuse settings in a record whose parts are code that this process has not imported for its user.

    Raises:
        InputError: a part is.
    """
    for field, catalogue in PARTS.items():
        for name in _names(settings.get(field, ())):
            catalogue.require_loaded(name)


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [one for one in value if isinstance(one, str)]


def _base(name: str, catalogue: Catalogue[Any]) -> str:
    plain = name.removesuffix(GROUP_NORM_SUFFIX)
    return plain if catalogue is MODELS and plain in MODELS else name
