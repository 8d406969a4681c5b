"""What a user names after --vary, read without an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fl_core.base.errors import require, require_name
from fl_core.base.values import field_kinds, read_assignment, read_list, read_value
from fl_core.run.config import FederationConfig

_FIXED = ("rounds", "delta", "sampling", "sampling_rate", "placement", "guarantee", "method", "dataset", "population")
"""Settings that all instances of a comparison share: what its report says once, and what a run costs."""


def read_varied(options: Sequence[str]) -> dict[str, list[Any]]:
    """Read the values of each setting in options such as `epsilon=2,8` and `partition=iid,shards(1)`.

    Raises:
        InputError: an option cannot be read, or a setting is unknown, shared by all or named twice.
    """
    kinds, choices = field_kinds(FederationConfig), dict[str, list[Any]]()
    for option in options:
        name, text = read_assignment("vary", option, "SETTING=VALUE,VALUE")
        name = name.replace("-", "_")
        require_name("setting", name, kinds)
        require(name not in _FIXED, f"vary names '{name}', but all instances of a comparison share it.")
        require(name not in choices, f"vary names '{name}' twice.")
        values = [read_value(f"vary: {name}", part, kinds[name]) for part in read_list("vary", text)]
        require(len(set(values)) == len(values), f"vary is '{option}', but it repeats a value.")
        choices[name] = values
    return choices
