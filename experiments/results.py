"""What a comparison of controllers measured: plain frozen records, written to JSON and read back strictly.

A `Comparison` holds one `ControllerResult` per controller, and that one `Episode` per seed. One episode is one whole
federated training run. Accuracies are shares in [0, 1]; ε is the (ε, δ) of client-level add/remove adjacency.

JSON has no infinity and no NaN: both are written as the strings "inf", "-inf" and "nan" (ε is infinite without privacy,
a diverged run has losses that are no numbers).
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Self

from fl_core.errors import InputError, require, unknown_name
from fl_core.files import read_json, write_json

SIGNAL_CLASSES = ("public", "accounted", "raw")
"""What a controller may see; see `envs` for which feature has which class."""

EVALUATED = (
    "global_accuracy",
    "personal_accuracy",
    "personal_accuracy_spread",
    "global_loss",
    "personal_loss",
    "personal_loss_spread",
)
"""Trajectories that exist only for the rounds in "evaluated_rounds", where that list is given."""

JUDGED_BY = {"global_accuracy": "global", "personal_accuracy": "personal"}
"""Figures that may decide a comparison -> the word for them."""

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Episode:
    """One federated training run under one controller."""

    seed: int
    """Fixes partition, cohorts, batches and noise: equal seeds of two controllers are a pair."""
    global_accuracy: float
    """Final accuracy of the global model on the pooled test set, in [0, 1]."""
    personal_accuracy: float
    """Final accuracy of the personal models, mean over clients, in [0, 1]."""
    epsilon_spent: float
    """ε by the ledger, which bounds whatever the controller did."""
    epsilon_pld: float
    """ε of the realised noise multipliers by dp-accounting's privacy loss distribution."""
    rounds: int
    """Communication rounds that were run; fewer than planned where the run ended early."""
    diverged: bool
    """Whether the run was stopped because the model was no longer finite."""
    trajectory: Mapping[str, list[float]]
    """Name -> one value per round (or per evaluated round, see `series`)."""

    def __post_init__(self) -> None:
        where = f"Episode {self.seed}"
        _check_types(self, where)
        for name in ("global_accuracy", "personal_accuracy"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{where}: {name} is {value}, but it must lie between 0 and 1.")
        for name in ("epsilon_spent", "epsilon_pld", "rounds"):
            value = getattr(self, name)
            require(value >= 0, f"{where}: {name} is {value}, but it must be at least 0.")
        evaluated = self.trajectory.get("evaluated_rounds")
        increasing = evaluated is None or all(a < b for a, b in itertools.pairwise(evaluated))
        require(increasing, f"{where}: trajectory 'evaluated_rounds' must increase.")
        for name in EVALUATED if evaluated is not None else ():
            found = len(self.trajectory.get(name, evaluated or []))
            expected = len(evaluated or [])
            require(found == expected, f"{where}: trajectory '{name}' has {found} values, expected {expected}.")

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """The rounds (the first is 1; 0 is the untrained model) and values of a trajectory, both empty if missing."""
        values = list(self.trajectory.get(name, []))
        if name in EVALUATED and "evaluated_rounds" in self.trajectory:
            return list(self.trajectory["evaluated_rounds"]), values
        return [float(index + 1) for index in range(len(values))], values

    def to_json(self) -> dict[str, Any]:
        """The episode as JSON values."""
        return _record(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; `InputError` for anything else."""
        values = _fields(cls, data, "An episode")
        raw = values["trajectory"]
        require(
            isinstance(raw, Mapping) and all(isinstance(series, list) for series in raw.values()),
            f"An episode's trajectory must map names to lists of numbers, not be {_short(raw)}.",
        )
        values["trajectory"] = {name: [_number(value) for value in series] for name, series in raw.items()}
        return cls(**values)


@dataclass(frozen=True)
class ControllerResult:
    """One controller and its episodes."""

    name: str
    """As on the command line, for example "fixed:0.5"."""
    label: str
    """As shown to people."""
    signals: str
    """What the controller was allowed to see, for example "public"."""
    signal_classes: tuple[str, ...]
    """Classes of the signals it saw, out of public, accounted and raw."""
    training_rounds: int
    """Federated rounds simulated to train it; above 0 means that it is learned."""
    search_rounds: int
    """Federated rounds simulated to tune its parameters in hindsight."""
    tuned_on: str
    """Which instances trained or tuned it, in words; "" for none."""
    episodes: tuple[Episode, ...]
    epsilon_target: float | None = None
    """Its own ε target where that is not the comparison's."""

    def __post_init__(self) -> None:
        where = f"Controller '{self.name}'"
        _check_types(self, where)
        require(bool(self.name and self.label), f"{where} needs a name and a label.")
        for signal in self.signal_classes:
            if signal not in SIGNAL_CLASSES:
                raise unknown_name(f"{where}: signal class", signal, SIGNAL_CLASSES)
        for name in ("training_rounds", "search_rounds"):
            value = getattr(self, name)
            require(value >= 0, f"{where}: {name} is {value}, but it must be at least 0.")
        target = self.epsilon_target
        require(target is None or target > 0, f"{where}: epsilon_target is {target}, but it must be above 0.")
        require(len(self.episodes) > 0, f"{where} has no episodes.")
        seeds = [episode.seed for episode in self.episodes]
        require(len(set(seeds)) == len(seeds), f"{where} has the same seed in two episodes.")

    @property
    def learned(self) -> bool:
        """Whether training, not only a formula or a search, made this controller."""
        return self.training_rounds > 0

    def by_seed(self, figure: str = "global_accuracy") -> dict[int, float]:
        """Seed -> that figure of the episode (an attribute of `Episode`), in the order of the seeds."""
        return {e.seed: float(getattr(e, figure)) for e in sorted(self.episodes, key=lambda e: e.seed)}

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return _record(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; `InputError` for anything else."""
        values = _fields(cls, data, "A controller")
        values["signal_classes"] = _tuple(values["signal_classes"], "signal_classes", lambda value: value)
        values["episodes"] = _tuple(values["episodes"], "episodes", Episode.from_json)
        return cls(**values)


@dataclass(frozen=True)
class Comparison:
    """Controllers compared on one task at the same (ε, δ) and the same seeds."""

    task: str
    method: str
    dataset: str
    clients: int
    epsilon: float
    """Target; infinite without privacy."""
    delta: float
    rounds: int
    """Planned communication rounds of one episode."""
    sampling: str
    """How clients are drawn: full, poisson, fixed."""
    sampling_rate: float
    """Expected share of the clients in a round, in (0, 1]."""
    accountant: str
    placement: str
    """Who adds the noise: central, distributed or local."""
    device: str
    executor: str
    wall_seconds: float
    created: str
    """ISO date."""
    command: str
    """What to type to get this comparison again."""
    controllers: tuple[ControllerResult, ...]
    judged_by: str = "global_accuracy"
    """Figure that decides: global_accuracy, or personal_accuracy where the server's model is not complete."""
    guarantee: str = "sound"
    """Whether ε is certified (sound) or what the method's paper claims (as-published)."""
    uncovered: tuple[str, ...] = ()
    """What the runs give away without noise."""

    def __post_init__(self) -> None:
        where = "The comparison"
        _check_types(self, where)
        if self.judged_by not in JUDGED_BY:
            raise unknown_name(f"{where}: judged_by", self.judged_by, JUDGED_BY)
        for name in ("clients", "rounds"):
            value = getattr(self, name)
            require(value >= 1, f"{where}: {name} is {value}, but it must be at least 1.")
        require(self.epsilon > 0, f"{where}: epsilon is {self.epsilon}, but it must be above 0.")
        require(0 <= self.delta < 1, f"{where}: delta is {self.delta}, but it must lie in [0, 1).")
        q = self.sampling_rate
        require(0 < q <= 1, f"{where}: sampling_rate is {q}, but it must lie in (0, 1].")
        seconds = self.wall_seconds
        require(0 <= seconds < math.inf, f"{where}: wall_seconds is {seconds}, but it must be finite and at least 0.")
        require(len(self.controllers) > 0, f"{where} has no controllers.")
        for names in ([c.name for c in self.controllers], [c.label for c in self.controllers]):
            twice = sorted({name for name in names if names.count(name) > 1})
            require(not twice, f"{where} has two controllers called '{', '.join(twice)}'.")

    def controller(self, name: str) -> ControllerResult:
        """The result of the controller with that name; `InputError` if there is none."""
        for controller in self.controllers:
            if controller.name == name:
                return controller
        raise unknown_name("controller", name, [c.name for c in self.controllers])

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return _record(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`; `InputError` for anything else."""
        values = _fields(cls, data, "A comparison")
        values["controllers"] = _tuple(values["controllers"], "controllers", ControllerResult.from_json)
        values["uncovered"] = _tuple(values.get("uncovered", ()), "uncovered", lambda value: value)
        return cls(**values)

    def write(self, path: Path) -> None:
        """Write as a JSON file."""
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the JSON file that `write` left; `InputError` where it holds anything else."""
        try:
            return cls.from_json(read_json(path))
        except InputError as error:
            message = str(error)
            raise (
                error if str(path) in message else InputError(f"The file '{path}' is no comparison: {message}")
            ) from error


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool), "a whole number"),
    "float": (lambda v: _is_number(v) and not math.isnan(v), "a number"),
    "float | None": (lambda v: v is None or (_is_number(v) and not math.isnan(v)), "a number or nothing"),
    "str": (lambda v: isinstance(v, str), "a text"),
    "bool": (lambda v: isinstance(v, bool), "true or false"),
    "tuple[str, ...]": (lambda v: isinstance(v, tuple) and all(isinstance(x, str) for x in v), "a list of texts"),
    "tuple[Episode, ...]": (lambda v: isinstance(v, tuple) and all(isinstance(x, Episode) for x in v), "episodes"),
    "tuple[ControllerResult, ...]": (
        lambda v: isinstance(v, tuple) and all(isinstance(x, ControllerResult) for x in v),
        "controller results",
    ),
    "Mapping[str, list[float]]": (
        lambda v: isinstance(v, Mapping) and all(isinstance(s, list) and all(map(_is_number, s)) for s in v.values()),
        "names with lists of numbers",
    ),
}
"""Annotation -> (is the value of that type, the type in words). `from_json` and the constructors share it."""


def _check_types(record: Any, where: str) -> None:
    for field in fields(record):
        value = getattr(record, field.name)
        matches, words = _CHECKS[str(field.type)]
        require(matches(value), f"{where}: {field.name} is {_short(value)}, but it must be {words}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _record(record: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, (Episode, ControllerResult)):
        return _record(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if _is_number(value):
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def _fields(cls: Any, data: Any, where: str) -> dict[str, Any]:
    """The JSON object's entries, numbers decoded, with exactly the names of the record's fields."""
    require(isinstance(data, Mapping), f"{where} must be a JSON object, not {_short(data)}.")
    known = {field.name: field for field in fields(cls)}
    for name in data:
        if name not in known:
            raise unknown_name(f"{where} has a field that", name, known)
    missing = [name for name, field in known.items() if name not in data and field.default is MISSING]
    require(not missing, f"{where} lacks the field '{', '.join(missing)}'.")
    return {
        name: _number(value) if str(known[name].type).startswith("float") else value for name, value in data.items()
    }


def _number(value: Any) -> Any:
    """Decode "inf", "-inf" and "nan"; JSON writes 1.0 and 1 alike elsewhere, so whole numbers become floats."""
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    return float(value) if _is_number(value) else value


def _tuple(value: Any, name: str, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    require(isinstance(value, Sequence) and not isinstance(value, str), f"{name} must be a list, not {_short(value)}.")
    return tuple(convert(entry) for entry in value)
