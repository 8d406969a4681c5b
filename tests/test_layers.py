"""Imports go one way: between the five packages, between the folders inside them, and between modules.

`FLOORS` is the documentation of the layers: whoever adds a folder gives it a floor here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import PACKAGES, ROOT, Import, arrows, circles, describe, floors, module_files, read_imports

FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (("fl_core",), ("envs",), ("policies",), ("agents",), ("experiments",)),
    "fl_core": (("base",), ("data", "models", "privacy"), ("recipes",), ("training",), ("run",), ("audit",)),
    "experiments": (
        ("libraries",),
        ("records", "terminal"),
        ("statistics", "workers", "loading"),
        ("reports", "contenders"),
        ("papers", "deployment", "advice"),
        ("lists", "options", "flower"),
        ("commands",),
        ("benchmarks", "cli"),
        ("_entry",),
    ),
}
"""Package -> its folders from the ground up ("": the packages themselves). Imports go down, never to a neighbour."""

NAMES_OF_ENVS = {"envs.faces", "envs.knobs", "envs.signals"}
"""What policies may import from envs: names of knobs and signals, and what finds them in an environment."""

LATE = {
    ("experiments.cli", "experiments.commands.execution"): "help, version and mistyped commands do not wait for torch",
    ("experiments.commands.execution", "experiments.commands.owners"): "it needs the agents; other commands do without",
    ("experiments.commands.execution", "envs.tasks"): "commands without a federation do without its settings",
    ("experiments.commands.options", "experiments.records.plain_yaml"): "few command lines name a file of options",
    ("envs.context", "fl_core.run.calibration"): "names and numbers are checked without torch, which it needs",
    ("envs.render", "envs.picture"): "few episodes are rendered, and matplotlib takes its time",
}
"""Imports inside functions, (module, imported module) -> why they are not at its top."""


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return read_imports()


def breaches(imports: list[Import], package: str) -> Iterator[str]:
    """One sentence for each import that does not go down the floors of a package ("": of the project)."""
    floor = {name: height for height, names in enumerate(FLOORS[package]) for name in names}
    order = " < ".join(", ".join(names) for names in FLOORS[package])
    for found in imports:
        source, target = _room(found.source, package), _room(found.target, package)
        if not source or not target or source == target:
            continue
        for name in (source, target):
            assert name in floor, f"{package or 'The project'} has no floor for {name}; add it to FLOORS in {__file__}."
        if floor[source] <= floor[target]:
            yield f"{_place(found)} imports {found.target}, but imports go down only: {order}."


def _room(module: str, package: str) -> str:
    parts = module.split(".")
    if not package:
        return parts[0]
    return parts[1] if parts[0] == package and len(parts) > 1 else ""


def _place(found: Import) -> str:
    return f"{found.source} (line {found.line})"


def _none(sentences: Iterator[str]) -> None:
    found = list(sentences)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", FLOORS, ids=lambda name: name or "packages")
def test_imports_go_down_the_floors(imports: list[Import], package: str) -> None:
    _none(breaches(imports, package))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(imports: list[Import], package: str) -> None:
    _none(f"{' -> '.join([*group, group[0]])} reach one another." for group in circles(arrows(imports, package)))


def test_policies_take_only_names_from_envs(imports: list[Import]) -> None:
    taken = [found for found in imports if found.source.startswith("policies") and found.target.startswith("envs")]
    assert taken
    _none(
        f"{_place(found)} imports {found.target}, but policies may import only {', '.join(sorted(NAMES_OF_ENVS))}."
        for found in taken
        if found.target not in NAMES_OF_ENVS
    )


def test_no_import_is_hidden_behind_type_checking(imports: list[Import]) -> None:
    _none(
        f"{_place(found)} imports {found.target} behind TYPE_CHECKING: import it plainly, or move what is shared down."
        for found in imports
        if found.place == "type-checking"
    )


def test_imports_inside_functions_are_those_that_save_time(imports: list[Import]) -> None:
    late = {(found.source, found.target): _place(found) for found in imports if found.place == "function"}
    _none(
        f"{place} imports {target} inside a function: move it to the top, or name it in LATE with the reason."
        for (source, target), place in late.items()
        if (source, target) not in LATE
    )
    _none(f"{source} no longer imports {target} late: take it out of LATE." for source, target in LATE.keys() - late)


def test_no_module_goes_through_the_front_door_of_its_own_package(imports: list[Import]) -> None:
    _none(
        f"{_place(found)} imports {found.target}, its own package: import the module that has the name."
        for found in imports
        if found.source.startswith(f"{found.target}.") and found.names
    )


@pytest.mark.parametrize("package", [name for name in FLOORS if name])
def test_every_folder_has_a_floor(package: str) -> None:
    folders = {_room(module, package) for module in module_files()} - {""}
    placed = {name for names in FLOORS[package] for name in names}
    assert folders == placed, f"folders of {package} without a floor or floors without a folder: {folders ^ placed}"


def test_the_five_packages_and_the_tests_are_the_only_ones_at_the_top() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    tops = {Path(line).parts[0] for line in listed.splitlines()}
    assert not tops or tops == {*PACKAGES, "tests", "docs"}  # docs has what its pages are built with, and no package
    assert not list((ROOT / "docs").rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_front_door_opens_every_name_and_ships_its_types(package: str) -> None:
    door = __import__(package)
    assert door.__all__ == sorted(door.__all__)
    assert len(door.__all__) >= 5
    for name in door.__all__:
        assert getattr(door, name) is not None
    assert (ROOT / package / "py.typed").exists()
    assert (ROOT / package / "__init__.pyi").exists()


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "envs"])
def test_opening_a_front_door_does_not_wait_for_torch(package: str) -> None:
    code = f"import sys, {package}; dir({package}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.fixture
def crooked(tmp_path: Path) -> Path:
    """A project in which everything that is forbidden happens once."""
    sources = {
        "fl_core/__init__.py": "",
        "fl_core/base/errors.py": "from fl_core.run import plan\n",
        "fl_core/run/plan.py": "import fl_core.base.errors\n",
        "fl_core/run/round.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .plan import Plan\n",
        "envs/core.py": "def late():\n    from policies.base import Controller\n",
        "policies/base.py": "from envs.core import make_core\n",
        "agents/train.py": "",
        "experiments/cli.py": "",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def test_what_is_forbidden_is_found(crooked: Path) -> None:
    imports = read_imports(crooked)
    assert {(found.source, found.target, found.place) for found in imports} == {
        ("fl_core.base.errors", "fl_core.run.plan", "module"),
        ("fl_core.run.plan", "fl_core.base.errors", "module"),
        ("fl_core.run.round", "fl_core.run.plan", "type-checking"),
        ("envs.core", "policies.base", "function"),
        ("policies.base", "envs.core", "module"),
    }
    [sentence] = breaches(imports, "fl_core")
    assert sentence.startswith(
        "fl_core.base.errors (line 1) imports fl_core.run.plan, but imports go down only: base <"
    )
    [upward] = breaches(imports, "")
    assert upward.startswith("envs.core (line 2) imports policies.base")
    assert circles(arrows(imports, "fl_core")) == [["fl_core.base.errors", "fl_core.run.plan"]]
    assert "modules: 2 floors, 3 arrows, 1 circles; rooms (2): 1 floors, 2 arrows, 1 circles" in describe(crooked)


def test_floors_are_counted_along_the_longest_way() -> None:
    assert floors({"a": {"b", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}) == 4
    assert floors({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == 2
    assert floors({}) == 0
