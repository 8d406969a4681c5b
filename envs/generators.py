"""Instance generators: distributions of the settings in which the instances of a set differ, besides their seeds.

A generator is written `SETTING=VALUE|VALUE,SETTING=LOW..HIGH`. What it draws for a seed depends on that seed and the
name of the setting alone, so the sets of `envs.instances` stay frozen and disjoint, and a setting more leaves the
draws of the others as they are.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fl_core.base.arguments import check_fields
from fl_core.base.catalogue import Catalogue
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.libraries import numpy as np
from fl_core.base.sources import told
from fl_core.base.values import field_kinds, read_assignment, read_list, read_value
from fl_core.run.config import FederationConfig, RunSettings

RUN_SETTINGS = tuple(field.name for field in fields(RunSettings) if field.name != "seed")
"""Settings in which the rows of one batch may differ."""
SHAPES = ("dataset", "clients", "model", "rounds")
"""Settings that change the shape of a federation's tensors or the length of its runs: instances that differ in them are
in different batches."""
SETTINGS = (*RUN_SETTINGS, *SHAPES)
"""Settings that a generator may draw."""
MOST_SHAPES = 16
"""Combinations of shapes at most: each is a federation in memory."""
_DIGITS = 3


@dataclass(frozen=True)
class Axis:
    """A setting in which instances differ.

    Attributes:
        field: its name.
        choices: values that are equally likely; () for a range.
        low, high: ends of a range, in which the value is log-uniform.
    """

    field: str
    choices: tuple[Any, ...] = ()
    low: float = math.nan
    high: float = math.nan

    def __post_init__(self) -> None:
        check_fields(self)
        require_name("generated setting", self.field, SETTINGS)
        kind = field_kinds(FederationConfig)[self.field]
        if self.choices:
            for one in self.choices:
                read_value(f"generator: {self.field}", one, kind)
        else:
            require(kind is float, f"generator gives {self.field} a range, but it takes choices only.")
            ends = f"{self.low:g}..{self.high:g}"
            require(
                0 < self.low < self.high < math.inf,
                f"generator gives {self.field} the range '{ends}', but it must be LOW..HIGH with 0 < LOW < HIGH.",
            )
        for one in self.extremes if self.field in RUN_SETTINGS else ():
            RunSettings(seed=0, **{self.field: one})

    def draw(self, seed: int) -> Any:
        """Draw the value of the instance with a seed; numbers of a range are rounded to three digits."""
        random = np.random.default_rng([seed, zlib.crc32(self.field.encode())])
        if self.choices:
            return self.choices[int(random.integers(len(self.choices)))]
        value = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{value:.{_DIGITS}g}")

    @property
    def extremes(self) -> tuple[Any, ...]:
        """All its choices, or both ends of its range."""
        return self.choices or (self.low, self.high)


@dataclass(frozen=True)
class Generator:
    """Distribution of instances: an axis per setting that differs; without axes, only their seeds differ."""

    axes: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def shapes(self) -> tuple[Mapping[str, Any], ...]:
        """Every combination of the settings that give a federation another shape."""
        axes = [axis for axis in self.axes if axis.field in SHAPES]
        values = itertools.product(*(axis.choices for axis in axes))
        return tuple(dict(zip([axis.field for axis in axes], one, strict=True)) for one in values)

    def draw(self, seed: int) -> dict[str, Any]:
        """Draw the settings of the instance with a seed, by name."""
        return {axis.field: axis.draw(seed) for axis in self.axes}

    def shape_of(self, seed: int) -> int:
        """Find the place among `shapes` of the instance with a seed."""
        drawn = self.draw(seed)
        return self.shapes.index({axis.field: drawn[axis.field] for axis in self.axes if axis.field in SHAPES})

    def fill(self, settings: RunSettings) -> RunSettings:
        """Fill the open settings of a run with the values that the generator draws for its seed."""
        drawn = {axis.field: axis.draw(settings.seed) for axis in self.axes if axis.field in RUN_SETTINGS}
        return replace(settings, **{name: value for name, value in drawn.items() if getattr(settings, name) is None})

    def extremes(self) -> list[RunSettings]:
        """List runs that meet every choice and both ends of every range at least once, the rest as drawn for seed 0."""
        found = [RunSettings(seed=0)]
        for axis in self.axes:
            if axis.field in RUN_SETTINGS:
                found += [RunSettings(seed=0, **{axis.field: value}) for value in axis.extremes]
        return [self.fill(one) for one in found]


@dataclass(frozen=True)
class GeneratorEntry:
    """A line of the catalogue: a summary, and what the name stands for, as written or as an object."""

    summary: str
    spec: str | Generator


_BUILT_IN: dict[str, GeneratorEntry] = {
    "scale": GeneratorEntry("updates up to 5 times longer or shorter", "update_scale=0.2..5"),
    "mixed": GeneratorEntry(
        "budget, learning rate and heterogeneity",
        "epsilon=3..12,learning_rate=0.1..1,partition=iid|dirichlet(0.3)|shards(3)|shards(2)",
    ),
    "mixed-scale": GeneratorEntry(
        "mixed, and updates up to 5 times longer or shorter",
        "epsilon=3..12,learning_rate=0.1..1,partition=iid|dirichlet(0.3)|shards(3)|shards(2),update_scale=0.2..5",
    ),
    "wide": GeneratorEntry(
        "mixed-scale, and clients and length of the runs",
        "epsilon=3..12,learning_rate=0.1..1,partition=iid|dirichlet(0.3)|shards(3)|shards(2),update_scale=0.2..5,"
        "clients=25|50,rounds=20|40",
    ),
    "sizes": GeneratorEntry("clients and model size", "clients=25|50|100,model=mlp-small|mlp|mlp-wide"),
    "datasets": GeneratorEntry("dataset (mnist5k needs the extra of that name)", "dataset=digits|mnist5k"),
}


def parse_generator(text: str) -> Generator:
    """Parse a generator: a name of the catalogue, or as written; empty for none.

    Raises:
        InputError: it cannot be read, or a setting is unknown, named twice, or cannot be drawn.
    """
    require(isinstance(text, str), f"generator is {text!r}, but it must be text.")
    if text and ("=" not in text or text in GENERATORS):
        spec = GENERATORS.find(text).spec
        return _parse(spec) if isinstance(spec, str) else spec
    return _parse(text)


def _parse(text: str) -> Generator:
    axes = tuple(_axis(part) for part in read_list("generator", text))
    names = [axis.field for axis in axes]
    for name in names:
        require(names.count(name) == 1, f"generator names '{name}' twice.")
    found = Generator(tuple(sorted(axes, key=lambda axis: axis.field)))
    require(
        len(found.shapes) <= MOST_SHAPES,
        f"generator combines {len(found.shapes)} values of {', '.join(SHAPES)}, but {MOST_SHAPES} are the most.",
    )
    return found


def generator_entry_of(given: Any, who: str) -> GeneratorEntry:
    """Make an entry of what a user gives.

    Args:
        given: a `GeneratorEntry`, a text as written, a `Generator`, or a function that takes nothing and returns one.
        who: for error messages.

    Raises:
        InputError: it is none of these, or cannot be read.
    """
    made = given
    if callable(given):
        try:
            made = given()
        except Exception as error:
            raise InputError(f"{who} is called with nothing, but raises {told(error)}.") from error
    entry = made if isinstance(made, GeneratorEntry) else GeneratorEntry("a user's own", made)
    require(
        isinstance(entry.spec, (str, Generator)),
        f"{who} is of type {type(entry.spec).__name__}, but a generator is a text such as epsilon=3..12, or an "
        "envs.Generator.",
    )
    if isinstance(entry.spec, str):
        try:
            require("=" in entry.spec, f"generator is '{entry.spec}', but it must read SETTING=VALUES.")
            _parse(entry.spec)
        except InputError as error:
            raise InputError(f"{who}: {error}") from error
    return entry


GENERATORS = Catalogue("generator", _BUILT_IN, generator_entry_of)


def register_generator(name: str, generator: Any) -> str:
    """Enter a generator under a name, for `--generator NAME` and `generator="NAME"`.

    Args:
        name: a word.
        generator: a text such as `epsilon=3..12,clients=25|50`, a `Generator`, or a function that returns one.

    Returns:
        The name.

    Raises:
        InputError: the name cannot be one or is built in, or the generator cannot be read.
    """
    return GENERATORS.register(name, generator)


def _axis(part: str) -> Axis:
    field, values = read_assignment("generator", part, "SETTING=VALUE|VALUE or SETTING=LOW..HIGH")
    field = field.replace("-", "_")
    require_name("generated setting", field, SETTINGS)
    kind = field_kinds(FederationConfig)[field]
    low, dots, high = values.partition("..")
    if not dots:
        choices = tuple(read_value(f"generator: {field}", one, kind) for one in values.split("|"))
        require(len(set(choices)) == len(choices), f"generator repeats a value of {field}: '{values}'.")
        return Axis(field, choices)
    require(kind is float, f"generator gives {field} the range '{values}', but it takes VALUE|VALUE only.")
    return Axis(field, (), *(read_value(f"generator: {field}", end, kind) for end in (low, high)))
