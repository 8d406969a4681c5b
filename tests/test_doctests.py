"""The examples in docstrings run, and the classes that a user meets have one."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

from tests.import_graph import module_files

torch.set_num_threads(1)

MODULES = [
    name for name, paths in module_files().items() if any(">>> " in path.read_text(encoding="utf-8") for path in paths)
]
MET = {
    "envs.single": "DPilotEnv",
    "fl_core.privacy.accounting": "epsilon",
    "fl_core.privacy.ledger": "Ledger",
    "fl_core.recipes.recipe": "Recipe",
    "fl_core.run.federation": "Federation",
    "policies.base": "Controller",
}
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize(("module", "name"), MET.items())
def test_what_users_meet_first_has_an_example(module: str, name: str) -> None:
    assert ">>> " in getattr(importlib.import_module(module), name).__doc__
