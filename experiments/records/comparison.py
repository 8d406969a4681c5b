"""Measurements of a comparison of controllers: frozen records, written to JSON and read back strictly.

A `Comparison` holds one `ControllerResult` per controller, and that one `Episode` per training of the controller,
instance and seed. One episode is one whole federated training run, an instance is a setting of the task, and two
controllers on one instance and seed are a pair. Accuracies are shares in [0, 1]; ε is the (ε, δ) of client-level
add/remove adjacency.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from experiments.records.costs import PriorRounds
from fl_core.base.arguments import checked
from fl_core.base.errors import InputError, require, require_name
from fl_core.base.fields import check_types, items, record_fields, written
from fl_core.base.files import NON_FINITE, json_number, read_json, spelled_out, write_json
from fl_core.base.text import short
from fl_core.data.populations import POPULATIONS, share_samples
from fl_core.privacy.adjacency import ADJACENCIES, amplified_rate, default_adjacency
from fl_core.privacy.releases import SIGNAL_CLASSES
from fl_core.run.basis import basis_text

Pair = tuple[str, int]
"""Name of an instance and a seed, on which two controllers are compared."""

EVALUATED = (
    "global_accuracy",
    "personal_accuracy",
    "personal_accuracy_error",
    "personal_accuracy_spread",
    "global_loss",
    "personal_loss",
    "personal_loss_spread",
)
"""Trajectories that exist only for the rounds in "evaluated_rounds", where that list is given."""

JUDGED_BY = {"global_accuracy": "global", "personal_accuracy": "personal"}
"""Metric that may decide a comparison -> the word for it."""

STATISTICS = "statistics"
"""Entry of a comparison's file for statistics computed from the rest; it is not read back."""


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
    """True if the run was stopped because the model, or an action of its controller, was no longer finite."""
    trajectory: Mapping[str, list[float]]
    """Name -> one value per round (or per evaluated round, see `series`)."""
    instance: str = ""
    """Name of the setting it was run in, one of the comparison's instances; "" where there is only the task's own."""
    training: int = 0
    """Index of the training that made the controller, from 0."""

    def __post_init__(self) -> None:
        where = f"Episode {self.seed}"
        check_types(self, where)
        for name in ("global_accuracy", "personal_accuracy"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{where}: {name} is {value}, but it must lie between 0 and 1.")
        for name in ("epsilon_spent", "epsilon_pld", "rounds", "training"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"{where}: {name} is {value}, but it must be at least 0.")
        evaluated = self.trajectory.get("evaluated_rounds")
        increasing = evaluated is None or all(a < b for a, b in itertools.pairwise(evaluated))
        require(increasing, f"{where}: trajectory 'evaluated_rounds' must increase.")
        for name in EVALUATED if evaluated is not None else ():
            found = len(self.trajectory.get(name, evaluated or []))
            expected = len(evaluated or [])
            require(found == expected, f"{where}: trajectory '{name}' has {found} values, expected {expected}.")

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """Return a trajectory's rounds (the first is 1; 0 is the untrained model) and values; both empty if missing."""
        values = list(self.trajectory.get(name, []))
        if name in EVALUATED and "evaluated_rounds" in self.trajectory:
            return list(self.trajectory["evaluated_rounds"]), values
        return [float(index + 1) for index in range(len(values))], values

    def to_json(self) -> dict[str, Any]:
        """Return the episode as JSON values."""
        return written(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parse what `to_json` returned; `InputError` for anything else."""
        values = record_fields(cls, data, "An episode")
        raw = values["trajectory"]
        require(
            isinstance(raw, Mapping) and all(isinstance(series, list) for series in raw.values()),
            f"An episode's trajectory must map names to lists of numbers, not be {short(raw)}.",
        )
        values["trajectory"] = {name: [json_number(value) for value in series] for name, series in raw.items()}
        return cls(**values)


@dataclass(frozen=True)
class ControllerResult:
    """One controller and its episodes."""

    name: str
    """Spec of the controller on the command line, for example "fixed:0.5"."""
    label: str
    """Name in reports and figures."""
    signals: str
    """Signal set that the controller was shown, for example "public"."""
    signal_classes: tuple[str, ...]
    """Classes of the signals it saw, out of public, accounted and raw."""
    training_rounds: int | None
    """Federated rounds simulated to train it, None if unknown; 0 means that it is not learned."""
    search_rounds: int
    """Federated rounds simulated to tune its parameters in hindsight."""
    tuned_on: str
    """Instances that trained or tuned it, in words; "" for none."""
    episodes: tuple[Episode, ...]
    tuned_population: str = ""
    """Population of those instances' clients: all, proxy or target; "" for none."""
    epsilon_target: float | None = None
    """Its own ε target where that is not the comparison's."""
    trainings: tuple[str, ...] = ()
    """Names of the trainings that made it, as `seed 0`; () for a controller that is not trained, or for one."""
    releases: tuple[PriorRounds, ...] = ()
    """Releases of the rounds that trained and tuned it; () where there were none, or where they are not known."""

    def __post_init__(self) -> None:
        where = f"Controller '{self.name}'"
        check_types(self, where)
        require(bool(self.name and self.label), f"{where} needs a name and a label.")
        for signal in self.signal_classes:
            require_name(f"{where}: signal class", signal, SIGNAL_CLASSES)
        for name in ("training_rounds", "search_rounds"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"{where}: {name} is {value}, but it must be at least 0.")
        if self.tuned_population:
            require_name(f"{where}: tuned_population", self.tuned_population, POPULATIONS)
        target = self.epsilon_target
        require(target is None or target > 0, f"{where}: epsilon_target is {target}, but it must be above 0.")
        require(len(self.episodes) > 0, f"{where} has no episodes.")
        released = sum(one.rounds for one in self.releases)
        words = f"{where} has releases of {released} rounds, but {self.rounds_before} rounds made it."
        require(not self.releases or released >= (self.rounds_before or 0), words)
        require(len(set(self.trainings)) == len(self.trainings), f"{where} names a training twice.")
        self._check_pairs(where)

    def _check_pairs(self, where: str) -> None:
        """Check that every training played every pair once."""
        played: list[list[Pair]] = [[] for _ in range(self.training_count)]
        for episode in self.episodes:
            known = episode.training < len(played)
            require(known, f"{where} has an episode of training {episode.training}, but {len(played)} trainings.")
            played[episode.training].append((episode.instance, episode.seed))
        for pairs in played:
            require(len(set(pairs)) == len(pairs), f"{where} has the same seed in two episodes.")
            require(set(pairs) == set(played[0]), f"{where} has trainings that played different seeds.")

    @property
    def learned(self) -> bool:
        """True if training, not only a formula or a search, made this controller."""
        return self.training_rounds != 0

    @property
    def rounds_before(self) -> int | None:
        """Number of federated rounds that its training and its search took; None if unknown."""
        return None if self.training_rounds is None else self.training_rounds + self.search_rounds

    @property
    def training_count(self) -> int:
        """Number of trainings, 1 for a controller that is not trained."""
        return max(1, len(self.trainings))

    def by_pair(self, metric: str = "global_accuracy") -> dict[Pair, list[float]]:
        """Collect a metric (an attribute of `Episode`) by pair, in the pairs' order: one value per training."""
        ordered = sorted(self.episodes, key=lambda e: (e.instance, e.seed, e.training))
        found: dict[Pair, list[float]] = {}
        for episode in ordered:
            found.setdefault((episode.instance, episode.seed), []).append(float(getattr(episode, metric)))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return written(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parse what `to_json` returned; `InputError` for anything else."""
        values = record_fields(cls, data, "A controller")
        values["signal_classes"] = items(values["signal_classes"], "signal_classes", lambda value: value)
        values["episodes"] = items(values["episodes"], "episodes", Episode.from_json)
        values["trainings"] = items(values.get("trainings", ()), "trainings", lambda value: value)
        values["releases"] = items(values.get("releases", ()), "releases", PriorRounds.from_json)
        return cls(**values)


@dataclass(frozen=True)
class Instance:
    """A setting of the task that controllers are compared in."""

    name: str
    """The changes in words."""
    epsilon: float
    """ε target there; infinite without privacy."""
    changes: Mapping[str, Any]
    """Setting -> value, where it differs from the task."""

    def __post_init__(self) -> None:
        where = f"Instance '{self.name}'"
        check_types(self, where)
        require(self.epsilon > 0, f"{where}: epsilon is {self.epsilon}, but it must be above 0.")

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parse an instance of a comparison's file; `InputError` for anything else."""
        values = record_fields(cls, data, "An instance")
        require(isinstance(values["changes"], Mapping), "An instance's changes must map settings to values.")
        # Settings are of any type: texts that spell a number which JSON lacks are decoded, whole numbers stay whole.
        changes = values["changes"].items()
        values["changes"] = {name: NON_FINITE.get(x, x) if isinstance(x, str) else x for name, x in changes}
        return cls(**values)


@dataclass(frozen=True)
class Comparison:
    """Controllers compared on one task, on the same instances and seeds, at the same (ε, δ) in each instance."""

    task: str
    method: str
    dataset: str
    clients: int
    epsilon: float
    """Target of the task; infinite without privacy. An instance may have its own."""
    delta: float
    rounds: int
    """Planned communication rounds of one episode."""
    sampling: str
    """Sampling of the clients: full, poisson, fixed."""
    sampling_rate: float
    """Expected share of the clients in a round, in (0, 1]."""
    accountant: str
    placement: str
    """Placement of the noise: central, distributed or local."""
    device: str
    executor: str
    wall_seconds: float
    created: str
    """ISO date."""
    command: str
    """Command that reproduces this comparison."""
    controllers: tuple[ControllerResult, ...]
    judged_by: str = "global_accuracy"
    """Metric that decides: global_accuracy, or personal_accuracy where the server's model is not complete."""
    guarantee: str = "sound"
    """`sound` where ε is certified, `as-published` where it is the claim of the method's paper."""
    uncovered: tuple[str, ...] = ()
    """Disclosures of the runs that no noise covers."""
    instances: tuple[Instance, ...] = ()
    """The settings that were played; () where there is only the task's own."""
    hindsight: tuple[ControllerResult, ...] = ()
    """Fixed clip norms played on the very same runs, to say in hindsight which had been best; they do not compete."""
    population: str = "all"
    """Population of the clients: all, proxy or target."""
    drawn: bool = False
    """True if a generator drew the instances, so that they stand for all that it could have drawn."""
    adjacency: str = ""
    """Neighbours that ε is about, one of `ADJACENCIES`; "" in records from before it was a setting."""
    origins: Mapping[str, Any] = field(default_factory=dict)
    """Parts that are not built in: name -> kind, file and SHA-256, in words."""

    @property
    def basis(self) -> str:
        """Unit, adjacency, observer and amplification of ε, in one line."""
        sampling = "poisson" if self.sampling == "full" else self.sampling  # at rate 1
        adjacency = self.adjacency or default_adjacency(sampling, self.placement)
        rate = amplified_rate(sampling, self.sampling_rate, self.placement, adjacency)
        return basis_text(adjacency, self.placement, rate)

    def __post_init__(self) -> None:
        where = "The comparison"
        check_types(self, where)
        require_name(f"{where}: adjacency", self.adjacency, ("", *ADJACENCIES))
        require_name(f"{where}: judged_by", self.judged_by, JUDGED_BY)
        require_name(f"{where}: population", self.population, POPULATIONS)
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
        require(len(self.targets) == max(1, len(self.instances)), f"{where} names an instance twice.")
        played = {episode.instance for c in (*self.controllers, *self.hindsight) for episode in c.episodes}
        for name in sorted(played):
            require_name(f"{where}: instance", name, self.targets)

    @property
    def targets(self) -> dict[str, float]:
        """ε target by name of the instance."""
        return {one.name: one.epsilon for one in self.instances} or {"": self.epsilon}

    @property
    def played(self) -> tuple[Instance, ...]:
        """Instances on which there are runs."""
        names = {episode.instance for controller in self.controllers for episode in controller.episodes}
        return tuple(one for one in self.instances if one.name in names)

    def controller(self, name: str) -> ControllerResult:
        """Find the result of a controller by name; `InputError` if there is none."""
        by_name = {controller.name: controller for controller in self.controllers}
        require_name("controller", name, by_name)
        return by_name[name]

    def tuned_here(self, controller: ControllerResult) -> bool:
        """Return True if the controller was trained or tuned on samples of the clients compared on."""
        return bool(controller.tuned_population) and share_samples(controller.tuned_population, self.population)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return written(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Parse what `to_json` returned; `InputError` for anything else."""
        values = record_fields(cls, data, "A comparison")
        values["controllers"] = items(values["controllers"], "controllers", ControllerResult.from_json)
        values["uncovered"] = items(values.get("uncovered", ()), "uncovered", lambda value: value)
        values["instances"] = items(values.get("instances", ()), "instances", Instance.from_json)
        values["hindsight"] = items(values.get("hindsight", ()), "hindsight", ControllerResult.from_json)
        return cls(**values)

    def write(self, path: Path, statistics: Mapping[str, Any] | None = None) -> None:
        """Write a JSON file, with the statistics computed from it where they are given."""
        write_json(path, self.to_json() | ({STATISTICS: spelled_out(statistics)} if statistics else {}))

    @classmethod
    @checked
    def read(cls, path: Path | str) -> Self:
        """Read the JSON file that `write` left; `InputError` for anything else."""
        try:
            data = read_json(Path(path))
            if isinstance(data, Mapping):
                data = {name: value for name, value in data.items() if name != STATISTICS}
            return cls.from_json(data)
        except InputError as error:
            message = str(error)
            raise (
                error if str(path) in message else InputError(f"The file '{path}' is no comparison: {message}")
            ) from error
