"""Users' controllers in the record of a command that goes on: their code is imported for whoever resumes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agents.online_spec import NAME
from experiments.contenders.specs import SAVED, TUNED, TUNED_ROUNDS, without_rounds
from policies.catalog import CONTROLLERS
from policies.specs import split_specs


def import_recorded(specs: Iterable[str], origins: Iterable[Any], folder: Path) -> None:
    """Import the code of users' controllers for who goes on with the results in a folder.

    Args:
        specs: the controllers that its record names.
        origins: where they come from by that record: mappings of names to origins, or what is kept of others.
        folder: of the results.

    Raises:
        InputError: the code is not here, has changed, lies in the folder, or its origin is not recorded.
    """
    for origin in origins:
        for name, record in origin.items() if isinstance(origin, Mapping) else ():
            CONTROLLERS.load_recorded(name, record, folder)
    for spec in map(without_rounds, specs):
        kind, _, family = spec.strip().partition(":")
        if kind not in (*SAVED, NAME) and spec.strip() != TUNED_ROUNDS:
            for one in split_specs(family if kind == TUNED else spec):
                CONTROLLERS.require_loaded(CONTROLLERS.split(one)[0])
