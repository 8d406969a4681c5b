"""What a user names after --controllers, read without an environment; `preparing` makes contenders of it."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.algorithms import ALGORITHMS
from agents.folders import PRETRAINED, controller_folder, is_pretrained, pretrained_folder
from agents.formats import EXPORTED
from agents.online_spec import NAME, OnlineSpec, parse_online
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.sources import split_spec
from fl_core.base.values import read_list, read_value
from policies.catalog import CONTROLLERS
from policies.parameters import MULTIPLE
from policies.specs import ControllerSpec, parse_controller, split_specs

LEARNED = (*ALGORITHMS, *EXPORTED)
"""Algorithms, and formats of imported policies, whose saved controllers are named as `ppo:FOLDER`."""
SAVED = (*LEARNED, PRETRAINED)
"""Names of what is read from a folder: those, and what comes with the package, as `pretrained:clip`."""
TUNED = "tuned"
"""Before the name of a family, as `tuned:exponential-decay`."""
TUNED_ROUNDS = f"{TUNED}:rounds"
"""Number of rounds and fixed clip norm, both searched."""
OTHER_ROUNDS = (0.5, 2.0)
"""Numbers of rounds that a search tries beside the setting's own, over it."""
AT = "@"
"""Between a controller and its number of rounds, as `probe@120`."""
_AT_ROUNDS = re.compile(rf"(?P<controller>.+){AT}(?P<rounds>{TUNED}|[-+.\d][-+.\w]*)")
COARSE_VALUES = 9
"""Clip norms over its range that the search for the best fixed one begins with, and that are played in hindsight."""


@dataclass(frozen=True)
class Family:
    """A hand-coded family whose parameters are searched, as `tuned:exponential-decay`."""

    controller: ControllerSpec

    def __str__(self) -> str:
        return f"{TUNED}:{self.controller}"


@dataclass(frozen=True)
class Saved:
    """Saved trainings of one learned controller, as `ppo:FOLDER,FOLDER`, or one that comes with the package."""

    spec: str

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True)
class RoundsFamily:
    """Fixed clip norms at different numbers of rounds, `tuned:rounds`."""

    def __str__(self) -> str:
        return TUNED_ROUNDS


@dataclass(frozen=True)
class Rounds:
    """Number of rounds of a controller: given, as a multiple of the setting's own, or searched.

    Attributes:
        number: of rounds, or that multiple; None for what is searched.
        multiple: True for a multiple.
    """

    number: float | None
    multiple: bool = False

    def of(self, own: int) -> tuple[int, ...]:
        """List the numbers of rounds to choose from in a setting that has so many, one if it is given."""
        if self.number is None:
            return tuple(sorted({own, *(max(1, round(factor * own)) for factor in OTHER_ROUNDS)}))
        return (max(1, round(self.number * own)) if self.multiple else int(self.number),)

    def __str__(self) -> str:
        return TUNED if self.number is None else f"{self.number:.12g}{MULTIPLE if self.multiple else ''}"


@dataclass(frozen=True)
class OtherRounds:
    """A controller for another number of rounds than the setting's, as `probe@120`, `probe@2x` or `probe@tuned`."""

    named: ControllerSpec | OnlineSpec | Saved
    rounds: Rounds

    def __str__(self) -> str:
        return f"{self.named}{AT}{self.rounds}"


_AtOwnRounds = ControllerSpec | OnlineSpec | Family | RoundsFamily | Saved
Named = _AtOwnRounds | OtherRounds


def read_spec(spec: str) -> Named:
    """Read a spec such as `fixed:0.5`, `tuned:exponential-decay`, `online-ppo:3`, `ppo:runs/NAME` or `probe@2x`.

    Raises:
        InputError: the controller is unknown, or its parameters, folders or rounds are wrong.
    """
    if found := _AT_ROUNDS.fullmatch(spec.strip()):
        return _read_rounds(spec, found["controller"], found["rounds"])
    return _read_controller(spec)


def _read_rounds(spec: str, controller: str, rounds: str) -> OtherRounds:
    """Read a controller and the number of rounds behind it; refuse one whose search has a number of its own."""
    named = _read_controller(controller)
    if isinstance(named, (Family, RoundsFamily)):
        raise InputError(
            f"controller '{spec}' asks for {rounds} rounds of '{controller}', which is searched in rounds of its own; "
            "name a controller without a search."
        )
    if rounds == TUNED:
        return OtherRounds(named, Rounds(None))
    number, multiple = rounds.removesuffix(MULTIPLE), rounds.endswith(MULTIPLE)
    try:
        value = read_value("rounds", number, float if multiple else int, finite=multiple)
        require(value > 0, "rounds is not positive.")
    except InputError as error:
        raise InputError(
            f"controller '{spec}': rounds is '{rounds}', but it must be a whole number of at least 1, a multiple of "
            f"the run's own above 0, as 2{MULTIPLE}, or {TUNED}."
        ) from error
    return OtherRounds(named, Rounds(value, multiple))


def _read_controller(spec: str) -> _AtOwnRounds:
    name = spec.partition(":")[0].strip()
    if name in SAVED:
        training_folders(spec)
        return Saved(spec)
    readers: dict[str, Callable[[str], _AtOwnRounds]] = {NAME: parse_online, TUNED: _parse_family}
    if name in readers:
        return readers[name](spec)
    for one in split_specs(spec):
        own, _ = CONTROLLERS.split(one)
        if own not in CONTROLLERS and split_spec(own) is None:  # the names of installed packages take long to read
            require_name("controller", own, [*CONTROLLERS.names(), *SAVED, NAME, TUNED])
    return parse_controller(spec)


def read_specs(specs: Sequence[str]) -> list[Named]:
    """Read specs, each of another controller.

    Raises:
        InputError: a spec cannot be read, or two are the same.
    """
    found = [read_spec(spec) for spec in specs]
    names = [str(one) for one in found]
    for name in names:
        require(names.count(name) == 1, f"controllers names '{name}' twice, but each may be compared only once.")
    return found


def _parse_family(spec: str) -> Family | RoundsFamily:
    """Parse the family of `tuned:FAMILY`; refuse one without parameters to search."""
    if spec.strip() == TUNED_ROUNDS:
        return RoundsFamily()
    family = spec.partition(":")[2]
    require(
        bool(family), f"controller '{spec}' names no family; write {TUNED}:FAMILY, as in {TUNED}:exponential-decay."
    )
    parsed = parse_controller(family)
    require(not parsed.others, f"controller '{spec}' names several families, but one search tunes one; name one.")
    if parsed.controller.tuned or parsed.controller.assigns or not parsed.controller.parameters:
        raise InputError(f"controller '{spec}' names '{parsed.name}', which has no parameters to search.")
    return Family(parsed)


def training_folders(spec: str) -> list[Path]:
    """List the folders that a spec names, those of a pattern in order of their names.

    Raises:
        InputError: it names none, a pattern that matches none, one twice, or what holds no controller.
    """
    if is_pretrained(spec):
        return [pretrained_folder(spec)]
    algorithm, _, text = spec.partition(":")
    folders: list[Path] = []
    for part in read_list(f"controller '{spec}'", text):
        found = sorted(glob.glob(part)) if glob.has_magic(part) and not Path(part).exists() else [part]
        require(bool(found), f"controller '{spec}' names '{part}', but no folder fits that.")
        folders += [Path(name) for name in found]
    require(bool(folders), f"controller '{spec}' names no folder; write {algorithm}:runs/NAME.")
    places = [folder.resolve() for folder in folders]
    twice = [str(folder) for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]
    require(not twice, f"controller '{spec}' names the training '{(twice or [''])[0]}' twice.")
    for folder in folders:
        require(
            not folder.is_file(),
            f"controller '{spec}' names the file '{folder}', which does not tell the task, knobs and signals of its "
            f"training; `dpilot import {shlex.quote(str(folder))} --name NAME` with these makes a controller of it.",
        )
        controller_folder(folder)
    return folders


def trainings_named(named: Named) -> int:
    """Count the policies behind a spec: one, or one per training."""
    named = named.named if isinstance(named, OtherRounds) else named
    return len(training_folders(named.spec)) if isinstance(named, Saved) else 1


def without_rounds(spec: str) -> str:
    """Return a spec without the number of rounds behind it."""
    found = _AT_ROUNDS.fullmatch(spec.strip())
    return found["controller"] if found else spec


def rounds_named(named: Named, own: int) -> int:
    """Return the most rounds of a run behind a spec, in a setting that has so many."""
    return max(named.rounds.of(own)) if isinstance(named, OtherRounds) else own
