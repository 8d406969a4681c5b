"""Lists, help, and refusals of names and numbers: answered without the libraries that take seconds to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from agents.algorithms import ACTIVATIONS
from agents.exported import ExportedPolicy
from agents.formats import EXPORTED
from experiments.benchmarks.start_up import ANSWERED, REFUSED
from experiments.commands.catalog import COMMANDS
from experiments.commands.lists import LISTS
from fl_core.base.libraries import Library, Tensor

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "numpy",
    "gymnasium",
    "stable_baselines3",
    "scipy",
    "pandas",
    "matplotlib",
    "sklearn",
    "opacus",
    "dp_accounting",
    "typeguard",
}
_PLAY = """
import contextlib, ctypes, io, os, sys
from experiments.cli import main

def absent(name, *_, **__):
    raise OSError(f"{name}: cannot open shared object file")

if sys.argv[1] == "no-driver":  # of a GPU, whatever this machine has
    plain_exists = os.path.exists
    ctypes.CDLL, os.path.exists = absent, lambda path: path != "/dev/kfd" and plain_exists(path)

def answered(line):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return main(line.split())
        except SystemExit as stop:
            return stop.code

for line in sys.stdin.read().splitlines():
    status = answered(line)
    print(line, status, *sorted(sys.modules.keys() & set(sys.argv[2:])), sep=";")
"""


def played(
    lines: list[str], libraries: set[str], folder: Path, driver: str = "own-driver"
) -> dict[str, tuple[int, list[str]]]:
    """Play command lines one after the other in one process: line -> exit status, and what has been loaded by then."""
    done = subprocess.run(
        [sys.executable, "-c", _PLAY, driver, *libraries],
        input="\n".join(lines),
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [line.split(";") for line in done.stdout.splitlines()]
    return {line: (int(status), loaded) for line, status, *loaded in told}


def test_what_needs_names_and_numbers_alone_loads_none_of_the_heavy_libraries(tmp_path):
    found = played(list(ANSWERED), HEAVY, tmp_path)
    assert list(found) == list(ANSWERED)
    assert {line: loaded for line, (_, loaded) in found.items() if loaded} == {}
    assert {line for line, (status, _) in found.items() if status == 2} == set(REFUSED)
    assert {status for status, _ in found.values()} == {0, 2}
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_refused_without_torch(tmp_path):
    options = ("run --device", "compare --device", "train --federation.device", "train --agent.device")
    lines = [f"{option} {device}" for option in options for device in ("cuda", "cuda:1")]
    assert played(lines, HEAVY, tmp_path, "no-driver") == {line: (2, []) for line in lines}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_that_are_parsed_for_it(name):
    assert issubclass(COMMANDS[name].load(), COMMANDS[name].load_options())


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_where_the_table_of_lists_says(name):
    heading, *entries = LISTS[name].load()()
    assert entries
    assert {len(entry) for entry in entries} == {len(heading)}


def test_what_catalogues_name_by_its_place_is_there():
    assert all(issubclass(one.load(), ExportedPolicy) and one.load().label for one in EXPORTED.values())
    assert all(issubclass(getattr(nn, name), nn.Module) for name in ACTIVATIONS.values())


def test_what_follows_a_library_is_done_once_when_it_is_imported():
    code = "from fl_core.base.libraries import after_import; import sys; after_import(sys.argv[1], lambda: print(1))"
    code += "; import wave; import wave; after_import(sys.argv[1], lambda: print(2))"
    done = subprocess.run([sys.executable, "-c", code, "wave"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2"]


def test_a_library_is_imported_when_a_name_of_it_is_asked_for():
    assert Library("math").floor(1.5) == 1
    with pytest.raises(ModuleNotFoundError):
        Library("nosuchlibrary").anything  # noqa: B018


def test_tensors_are_told_from_all_else():
    assert isinstance(nn.Linear(1, 1).weight.data, Tensor)
    assert not isinstance(1.0, Tensor)
    assert not isinstance(None, Tensor | int)
