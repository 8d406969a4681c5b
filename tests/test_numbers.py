"""Every number that a user may set has a range: each is tried with numbers that mean nothing."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from agents import TrainingConfig
from agents.algorithms import ALGORITHMS
from agents.import_sources import ImportOptions
from envs import EnvSpec, Knob, Task
from envs.generators import Axis
from experiments.commands.catalog import COMMANDS
from experiments.workers.options import WorkerOptions
from fl_core import FederationConfig, InputError, KnobRange, RunSettings
from fl_core.recipes.aggregation import Aggregation
from fl_core.recipes.mechanism import Mechanism
from fl_core.recipes.objective import Objective
from fl_core.recipes.personalization import Personalization
from fl_core.recipes.personalization_kinds import PERSONALIZATIONS
from fl_core.recipes.sparsification import SPARSIFICATIONS
from fl_core.recipes.terms import TERMS
from fl_core.run.federation import Federation
from tests.import_graph import module_files

HUGE = 10**400
MEANINGLESS: tuple[Any, ...] = (math.nan, 1e308, -1e308, HUGE, -HUGE, -math.inf, -1e-300, -(2**200), 2**200)
INFINITE = ("epsilon", "reference_epsilon")
"""Fields that may be infinite: without noise."""
SIGNED = ("log_std_init", "budget_growth", "noise_growth", "low", "default")
"""Fields that may be below 0."""
AT_HAND = [algo for algo, one in ALGORITHMS.items() if find_spec(one.place.partition(":")[0])]

RECORDS: Mapping[str, Any] = {
    "FederationConfig": FederationConfig(),
    "RunSettings": RunSettings(1),
    "EnvSpec": EnvSpec(),
    "Task": Task("x", "", FederationConfig(), (0.1, 8.0), 1.0),
    "Knob": Knob("x", 0.1, 1.0, 0.5, "log", ""),
    "KnobRange": KnobRange("x", 0.1, 1.0, 0.5, "linear", ""),
    "Axis": Axis("epsilon", low=1.0, high=2.0),
    "ImportOptions": ImportOptions(),
    "Mechanism": Mechanism(),
    "Objective": Objective(),
    "Personalization": Personalization(),
    "Aggregation": Aggregation(),
    **{f"TrainingConfig({algo})": TrainingConfig(algo=algo) for algo in AT_HAND},
    **PERSONALIZATIONS,
    **SPARSIFICATIONS,
    **{name: cls() for name, cls in TERMS.items()},
}
CHECKED_ELSEWHERE = {
    "ControllerSpec": "its parameters have ranges of their own (tests/policies/test_catalog.py)",
    "OnlineSpec": "its seed is checked where it is read from a text (tests/agents/test_online.py)",
    "OnlineSettings": "constants of the agent, which no user sets",
    "ServerSettings": "its module needs flwr (tests/experiments/flower/test_bad_input.py)",
}
"""Classes of settings that are not tried here -> why."""
NEEDED: Mapping[str, dict[str, Any]] = {
    "paper": {"name": "fedglp-adp-table1", "dataset": "digits", "model": "mlp", "rounds": 2},
    "import": {"file": Path("model.onnx")},
}


class WorkBegan(BaseException):
    """A round was asked for, though a number means nothing."""


def numbers_of(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """List the fields of a dataclass that are numbers, optional numbers or tuples of them, with their types."""
    hints = get_type_hints(cls)
    for one in dataclasses.fields(cls):
        hint = hints[one.name]
        inner = {hint, *get_args(hint), *(part for arg in get_args(hint) for part in get_args(arg))}
        if inner & {int, float}:
            yield one.name, hint


def filled(hint: Any, value: Any) -> Any:
    """Make a field's value of a number: itself, or a tuple of it."""
    kind = next((one for one in (hint, *get_args(hint)) if get_origin(one) is tuple), None)
    return value if kind is None else (value,) * sum(one is not Ellipsis for one in get_args(kind))


def fault(field: str, value: Any, make: Callable[[], Any], name: str = "") -> str:
    """Describe what is wrong with the answer to a number; "" for nothing."""
    try:
        make()
    except InputError as error:
        sentence = str(error)
        named = (
            field.replace("_", "-") in sentence
            or field in sentence.lower()
            or (name == "Axis" and "epsilon" in sentence)
        )
        return "" if named and "\n" not in sentence and sentence.endswith(".") else f"{field}={value!r:.20}: {sentence}"
    except (Exception, WorkBegan) as error:
        return f"{field}={value!r:.20}: {type(error).__name__} {error!s:.80}"
    return f"{field}={value!r:.20} is taken"


@pytest.mark.parametrize("name", RECORDS)
def test_a_number_without_meaning_is_refused_by_its_name(name: str) -> None:
    record = RECORDS[name]
    values = [*MEANINGLESS, math.inf]
    faults = [
        fault(field, value, lambda: dataclasses.replace(record, **{field: filled(hint, value)}), name)  # noqa: B023
        for field, hint in numbers_of(type(record))
        for value in values
        if not (value == math.inf and field in INFINITE)
        and not (value == -1e-300 and field in SIGNED)
        and not (name.startswith("TrainingConfig(") and field not in _own(record))
    ]
    assert [one for one in faults if one] == []


def _own(config: TrainingConfig) -> set[str]:
    """List the fields that a training's algorithm has; the others are refused for that."""
    optional = {name for one in ALGORITHMS.values() for name in one.options}
    return {one.name for one in dataclasses.fields(config)} - optional | set(ALGORITHMS[config.algo].options)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_numbers_without_meaning_before_it_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def began(*_: Any, **__: Any) -> None:
        raise WorkBegan

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Federation, "run_round", began)
    Path("model.onnx").write_bytes(b"x")
    cls = COMMANDS[command].load()
    faults = [
        fault(field, value, lambda: cls(**NEEDED.get(command, {}), **{field: filled(hint, value)}).execute())  # noqa: B023
        for field, hint in numbers_of(cls)
        for value in (*MEANINGLESS, math.inf)
        if field not in NEEDED.get(command, {})
    ]
    assert [one for one in faults if one] == []
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_workers_refuse_numbers_without_meaning() -> None:
    faults = [
        fault(field, value, dataclasses.replace(WorkerOptions(), **{field: value}).check)
        for field, _ in numbers_of(WorkerOptions)
        for value in (*MEANINGLESS, math.inf)
    ]
    assert [one for one in faults if one] == []


def test_every_class_of_settings_is_tried() -> None:
    """Found by their names: a class that is added is missing here; a field that is added is tried with its class."""
    tried = {type(record) for record in RECORDS.values()} | {WorkerOptions}
    tried |= {base for one in COMMANDS.values() for base in one.load().__mro__}
    names = {one.__name__ for one in tried}
    assert len(names) == len(tried)
    found = {
        name
        for path in chain.from_iterable(module_files().values())
        for name in re.findall(r"^class (\w+(?:Config|Options|Settings|Spec))\b", path.read_text("utf-8"), re.MULTILINE)
    }
    assert {"FederationConfig", "WorkerOptions", "EnvSpec"} <= found
    assert found - names == CHECKED_ELSEWHERE.keys()


def test_every_part_of_a_recipe_that_has_a_number_is_tried() -> None:
    tried = {type(record) for record in RECORDS.values()}
    for base in (Mechanism, Objective, Aggregation, Personalization):
        known = {base, *base.__subclasses__()}
        assert {cls for cls in known if list(numbers_of(cls)) and cls.__module__.startswith("fl_core.")} <= tried


@pytest.mark.parametrize("name", ["FederationConfig", "RunSettings", "EnvSpec", "Task", "TrainingConfig(ppo)"])
def test_numbers_of_numpy_are_taken_and_kept_as_pythons(name: str) -> None:
    record = RECORDS[name]
    for field, hint in numbers_of(type(record)):
        value = getattr(record, field)
        if isinstance(value, (int, float)) and math.isfinite(value):
            given = np.int64(value) if int in (hint, *get_args(hint)) else np.float64(value)
            kept = getattr(dataclasses.replace(record, **{field: given}), field)
            assert type(kept) in (int, float)
            assert kept == value
